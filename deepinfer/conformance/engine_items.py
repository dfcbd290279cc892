"""Level L3: the engine on the backend under test, by the equality rule of engine tests.

float32: tokens equal to the cpu backend's, log-probabilities within 5e-5 of the oracle (twice that between two
implementations). bfloat16: teacher-forced, errors against the cpu's float32 no larger than the cpu's own in bfloat16
beyond chance (`equality`), and the same arg-max wherever the oracle's two best are more than 0.1 apart. Options that
change nothing are compared on the backend itself: tokens, and log-probabilities within 5e-5, or to the bit where the
backend claims that (`Backend.bit_equal_engine`). Without a model directory a small random model with the kernel shapes
of the family is made.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from deepinfer.conformance.engine_model import PROMPTS, Session, session
from deepinfer.conformance.equality import excess
from deepinfer.conformance.item import Item, Target, require, require_none
from deepinfer.hal import Cap, discovery

ORACLE = 5e-5
GAP = 0.1


def items(target: Target) -> Iterator[Item]:
    """All L3 items for `target`."""
    for name, check in (
        ("tokens and log-probs as on cpu", _as_on_cpu), ("bfloat16 within the rule", _bfloat16),
        ("no family op on the fallback", _no_fallback), ("batched as alone", _batched),
        ("prefix cache changes nothing", _prefix_cache), ("chunked prefill changes nothing", _chunked),
        ("block size changes nothing", _paged),
        ("repeated runs are equal", _repeated), ("streamed as generated", _streamed), ("score as generated", _score),
        ("a bad request fails alone", _bad_request),
    ):
        yield Item("L3", "engine", "", name, check)
    if target.device.supports(Cap.GRAPHS):
        yield Item("L3", "engine", "", "decode graphs change nothing", _graphs)


def _as_on_cpu(target: Target) -> None:
    found, wanted = session(target).greedy(), session(target).greedy(device="cpu")
    require_none(_differences(found, wanted, 2 * ORACLE))


Run = list[tuple[list[int], list[float]]]


def _differences(found: Run, wanted: Run, bound: float) -> list[str]:
    problems = []
    for index, ((tokens, logs), (other, other_logs)) in enumerate(zip(found, wanted, strict=True)):
        if tokens != other:
            pairs = zip([*tokens, -1], [*other, -1], strict=False)
            place = next(i for i, (a, b) in enumerate(pairs) if a != b)
            shown = f"{tokens[place:][:4]}, {other[place:][:4]}"
            problems.append(f"prompt {index}: tokens differ from position {place}: {shown}")
            continue
        worst = max((abs(a - b) for a, b in zip(logs, other_logs, strict=True)), default=0.0)
        if not worst <= bound:
            problems.append(f"prompt {index}: log-probabilities differ by {worst:.3g}, bound {bound:g}")
    return problems


def _bfloat16(target: Target) -> None:
    run = session(target)
    text = [prompt + tokens for prompt, (tokens, _) in zip(PROMPTS, run.greedy(device="cpu"), strict=True)]
    oracle, yardstick = run.score(text, device="cpu"), run.score(text, device="cpu", low=True)
    found = run.score(text, low=True)
    problems = excess((found - oracle).abs(), (yardstick - oracle).abs())
    best = oracle.topk(2, dim=-1).values
    clear = (best[:, 0] - best[:, 1]) > GAP
    wrong = clear & (found.argmax(-1) != oracle.argmax(-1))
    if bool(wrong.any()):
        problems.append(f"{int(wrong.sum())} of {int(clear.sum())} clear positions have another arg-max")
    require_none(problems)


def _no_fallback(target: Target) -> None:
    session(target).greedy()
    families = ("flash_mla.", "deep_gmm.", "deep_ep.")
    used = {
        name.removeprefix("fallback:"): number
        for name, number in target.device.statistics.items()
        if name.removeprefix("fallback:").startswith(families) and name.startswith("fallback:")
    }
    require(not used, f"ops that ran on the portable fallback, with counts: {used}")


def _same_backend(target: Target) -> float:
    """How far log-probabilities may move when an option that changes nothing is changed."""
    return 0.0 if discovery.load(target.device.backend).bit_equal_engine else ORACLE


def _batched(target: Target) -> None:
    run = session(target)
    alone = [run.greedy([prompt])[0] for prompt in PROMPTS]
    require_none(_differences(run.greedy(), alone, _same_backend(target)))


def _prefix_cache(target: Target) -> None:
    run, bound = session(target), _same_backend(target)
    cold, warm = run.greedy(PROMPTS[-1:]), run.greedy(PROMPTS[-1:])
    off = run.greedy(PROMPTS[-1:], enable_prefix_caching=False)
    require_none(_differences(warm, off, bound) + _differences(cold, off, bound))


def _chunked(target: Target) -> None:
    run = session(target)
    small = run.greedy(max_num_batched_tokens=17, max_num_seqs=8)
    require_none(_differences(small, run.greedy(), _same_backend(target)))


def _paged(target: Target) -> None:
    run = session(target)
    require_none(_differences(run.greedy(block_size=16, num_blocks=200), run.greedy(), _same_backend(target)))


def _graphs(target: Target) -> None:
    """Sizes are asked for, so that nothing falls back; one is larger than the batch, so that rows are padding."""
    run, sizes = session(target), (1, len(PROMPTS) + 2)
    require_none(_differences(run.greedy(decode_graphs=sizes), run.greedy(decode_graphs=False), ORACLE))
    require(run.llm(decode_graphs=sizes).decode_graphs().replayed > 0, "no step was replayed")


def _repeated(target: Target) -> None:
    run = session(target)
    first, second = (run.greedy(enable_prefix_caching=False) for _ in range(2))
    require_none(_differences(first, second, 0.0))


def _streamed(target: Target) -> None:
    run = session(target)
    pieces: list[list[int]] = [[] for _ in PROMPTS]
    for part in run.llm().generate_stream([list(prompt) for prompt in PROMPTS], run.params()):
        pieces[part.prompt_index] += part.token_ids
    wanted = [tokens for tokens, _ in run.greedy()]
    require(pieces == wanted, f"streamed tokens {pieces} differ from generated ones {wanted}")


def _score(target: Target) -> None:
    run = session(target)
    generated = run.greedy()
    text = [prompt + tokens for prompt, (tokens, _) in zip(PROMPTS, generated, strict=True)]
    problems = []
    for index, (scores, (tokens, logs)) in enumerate(zip(run.llm().score(text), generated, strict=True)):
        worst = float((scores[-len(tokens) :] - torch.tensor(logs)).abs().max()) if tokens else 0.0
        if not worst <= ORACLE:
            problems.append(f"prompt {index}: score differs from the generated log-probabilities by {worst:.3g}")
    require_none(problems)


def _bad_request(target: Target) -> None:
    run = session(target)
    good, bad = list(PROMPTS[0]), [run.llm().vocab_size + 7]
    outputs = run.llm().generate([good, bad, good], run.params(), use_tqdm=False)
    require(outputs[1].error is not None, "a token id beyond the vocabulary was accepted")
    tokens = [output.outputs[0].token_ids for output in (outputs[0], outputs[2])]
    require(tokens == [run.greedy()[0][0]] * 2, "the requests beside the bad one changed")


__all__ = ["GAP", "ORACLE", "Session", "items"]
