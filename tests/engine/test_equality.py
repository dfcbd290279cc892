"""The engine against transformers: float32 tokens and log-probs, and the bfloat16 error rule against a float64 oracle.

Greedy tokens are compared through one forward pass over prompt and output: by induction over positions the outputs are
equal exactly if every token is the yardstick's arg-max after the tokens before it.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

from deepinfer.engine import LLM, SamplingParams

VARIANTS = ["v3-groups-yarn", "v3-direct-q-halves", "v3-kernel-shapes", "v2-greedy", "v2-groups", "shipped"]
F32_BOUND = 5e-5
GAP = 0.1  # of the oracle's two best log-probabilities, above which the bfloat16 arg-max must be the oracle's


def prompts(variant: str, vocab: int, lengths: list[int], seed: int = 1) -> list[list[int]]:
    """Random tokens for random models; for the trained one pieces of a Python source, which is what it was trained on.

    (On noise a trained model is chaotic, and bfloat16 moves even clear arg-maxes of any implementation.)
    """
    if variant == "shipped":
        text = Path(textwrap.__file__).read_bytes()
        return [list(text[1000 + 7 * n : 1000 + 8 * n]) for n in lengths]
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in lengths]


def generate(llm: LLM, given: list[list[int]], new: int, logprobs: int | None):
    params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, logprobs=logprobs)
    outputs = llm.generate(given, params, use_tqdm=False)
    for output in outputs:
        assert output.error is None
        assert output.outputs[0].finish_reason == "length"
        assert len(output.outputs[0].token_ids) == new
    return outputs


def table(output, vocab: int) -> torch.Tensor:
    """[new, vocab] of an output with all log-probabilities."""
    rows = [[entry[token].logprob for token in range(vocab)] for entry in output.outputs[0].logprobs]
    return torch.tensor(rows, dtype=torch.float64)


def chosen(distribution: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Log-probability of each token in the row before it."""
    return distribution.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def clear_misses(found: torch.Tensor, exact: torch.Tensor) -> int:
    """Rows whose arg-max differs although the oracle's two best are clearly apart."""
    best = exact.topk(2, -1)
    clear = best.values[:, 0] - best.values[:, 1] > GAP
    return int(((found.argmax(-1) != best.indices[:, 0]) & clear).sum())


def check_float32(variant, path, teacher, lengths: list[int], new: int, **options) -> None:
    with LLM(path, "cpu", "float32", **options) as llm:
        given = prompts(variant, llm.vocab_size, lengths)
        scores = llm.score(given, full_vocab=True)
        outputs = generate(llm, given, new, logprobs=-1)
        for prompt, score, output in zip(given, scores, outputs, strict=True):
            tokens = output.outputs[0].token_ids
            reference = teacher(path, torch.float32, prompt + tokens)
            after_prompt = reference[len(prompt) - 1 : -1]
            assert tokens == after_prompt.argmax(-1).tolist(), f"prompt of {len(prompt)} tokens"
            ours = torch.cat([score[:-1].double(), table(output, llm.vocab_size)])
            oracle = teacher(path, torch.float64, prompt + tokens)[:-1]
            following = (prompt + tokens)[1:]
            assert (chosen(ours, following) - chosen(oracle, following)).abs().max() <= F32_BOUND
            # Far below the chosen token the yardstick's own float32 error reaches 1e-4 in the trained model.
            slack = F32_BOUND + 2 * (reference[:-1] - oracle).abs().max()
            assert (ours - oracle).abs().max() <= (slack if variant == "shipped" else F32_BOUND)


def check_bfloat16(variant, path, teacher, lengths: list[int], new: int, device="cpu", **options) -> None:
    with LLM(path, device, "bfloat16", **options) as llm:
        given = prompts(variant, llm.vocab_size, lengths)
        ours, theirs, truth = [], [], []
        scores = llm.score(given, full_vocab=True)
        for prompt, score, output in zip(given, scores, generate(llm, given, new, logprobs=-1), strict=True):
            full = prompt + output.outputs[0].token_ids[:-1]
            ours.append(torch.cat([score[:-1].double(), table(output, llm.vocab_size)]))
            theirs.append(teacher(path, torch.bfloat16, full))
            truth.append(teacher(path, torch.float64, full))
    mine, yard, exact = torch.cat(ours), torch.cat(theirs), torch.cat(truth)
    wrong, yard_wrong = (clear_misses(t, exact) for t in (mine, yard))
    # The trained model's distributions are so sharp that bfloat16 activations move 2 or 3 of 1200 clear arg-maxes in
    # any implementation. Where the yardstick shows that, it cannot be asked of ours; the quantiles still bind.
    excused = variant == "shipped" and options["activation_dtype"] == "bfloat16" and yard_wrong > 0
    assert wrong == 0 or excused, f"{wrong} clear arg-maxes differ from the oracle's (yardstick: {yard_wrong})"
    for share in (0.5, 0.99):
        error, bound = (torch.quantile((t - exact).abs().flatten()[: 10**7], share) for t in (mine, yard))
        assert error <= bound, f"quantile {share}: error {error:.3e}, yardstick {bound:.3e}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_tokens_and_logprobs(variant, checkpoints, teacher) -> None:
    options = {"block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 48}
    check_float32(variant, checkpoints(variant), teacher, [1, 7, 33, 120, 16], 24, **options)


@pytest.mark.parametrize("activations", ["auto", "bfloat16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_bfloat16_error_is_no_larger_than_the_yardstick(variant, activations, checkpoints, teacher) -> None:
    """Both with what host processors compute in between (float32) and with what accelerators do (bfloat16)."""
    options = {"block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 256, "activation_dtype": activations}
    check_bfloat16(variant, checkpoints(variant, torch.bfloat16), teacher, [1, 9, 40, 90, 150], 16, **options)


@pytest.mark.long
@pytest.mark.parametrize("block_size", [1, 64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_long(variant, block_size, checkpoints, teacher) -> None:
    lengths = [1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 100, 128, 129, 200, 255, 256, 257, 299, 300]
    check_float32(
        variant,
        checkpoints(variant),
        teacher,
        lengths,
        64,
        block_size=block_size,
        max_num_seqs=11,
        max_num_batched_tokens=96,
    )


@pytest.mark.long
@pytest.mark.parametrize("activations", ["auto", "bfloat16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_bfloat16_long(variant, activations, checkpoints, teacher) -> None:
    lengths = [1, 5, 17, 64, 130, 222, 300]
    check_bfloat16(variant, checkpoints(variant, torch.bfloat16), teacher, lengths, 64, activation_dtype=activations)
