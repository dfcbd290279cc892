"""Any configuration of the class that the loader takes equals the yardstick: random ones, by the equality rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deepinfer.engine import LLM, SamplingParams
from tests.engine.random_models import RandomModel, random_model
from tests.engine.test_equality import F32_BOUND, chosen, clear_misses

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
NEW = 12
LENGTHS = (1, 5, 33, 70)
OPTIONS = {"block_size": 16, "max_num_seqs": 3, "max_num_batched_tokens": 40}


def texts(model: RandomModel, llm: LLM, seed: int) -> list[tuple[list[int], int]]:
    """Prompts with what the engine writes behind them, and the prompts' lengths."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(0, llm.vocab_size, (n,), generator=generator).tolist() for n in LENGTHS]
    params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert not any(output.error for output in outputs)
    return [(p + o.outputs[0].token_ids, len(p)) for p, o in zip(prompts, outputs, strict=True)]


def check_exact(model: RandomModel, seed: int) -> None:
    """float32 (float8 weights are exact in it): tokens equal, log-probabilities within the bound."""
    with LLM(model.path, "cpu", "float32", **OPTIONS) as llm:
        found = texts(model, llm, seed)
        scores = llm.score([tokens for tokens, _ in found], full_vocab=True)
    for (tokens, start), score in zip(found, scores, strict=True):
        oracle, sure = model.oracle(tokens)
        best = model.teacher(torch.float32, tokens).argmax(-1).tolist()
        last = min(sure, len(tokens) - 1)
        assert tokens[start : last + 1] == best[start - 1 : last], f"seed {seed}, prompt of {start} tokens"
        following = tokens[1 : last + 1]
        error = chosen(score[:last].double(), following) - chosen(oracle[:last], following)
        assert error.abs().max() <= F32_BOUND, f"seed {seed}: {model.config}"


def check_rounded(model: RandomModel, seed: int, activations: str) -> None:
    """bfloat16: errors no larger than the yardstick's, and no clear arg-max moved."""
    with LLM(model.path, "cpu", "bfloat16", activation_dtype=activations, **OPTIONS) as llm:
        found = texts(model, llm, seed)
        ours = torch.cat([s.double() for s in llm.score([tokens for tokens, _ in found], full_vocab=True)])
    yard = torch.cat([model.teacher(torch.bfloat16, tokens) for tokens, _ in found])
    exact = torch.cat([model.oracle(tokens)[0] for tokens, _ in found])
    assert clear_misses(ours, exact) == 0, f"seed {seed}"
    for share in (0.5, 0.99):
        error, bound = (torch.quantile((t - exact).abs().flatten(), share) for t in (ours, yard))
        assert error <= bound, f"seed {seed}, quantile {share}: {error:.3e}, yardstick {bound:.3e}: {model.config}"


def check(root: Path, seed: int) -> None:
    model = random_model(root, seed)
    if model.kind == "bfloat16":
        check_rounded(model, seed, "auto")
    else:
        check_exact(model, seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_random_configuration(seed, tmp_path) -> None:
    check(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6, 120))
def test_random_configurations_long(seed, tmp_path) -> None:
    check(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200, 240))
def test_bfloat16_activations_long(seed, tmp_path) -> None:
    check_rounded(random_model(tmp_path, seed, "bfloat16"), seed, "bfloat16")
