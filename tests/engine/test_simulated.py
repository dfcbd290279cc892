"""The engine's first model end to end on simulated accelerators: the shipped checkpoint by the equality rule.

Which ops may run on the portable tier is written down with the reason; any other one there is a failure.
"""

from __future__ import annotations

import pytest

import deepinfer
from deepinfer.engine import LLM, SamplingParams
from deepinfer.errors import BackendUnavailable
from tests.engine.conftest import SHIPPED
from tests.engine.test_equality import GAP, check_bfloat16
from tests.engine.test_equality import prompts as prompt_pieces

DEVICES = ("cuda_sm90/sim", "cuda_sm10/sim")
# Ops of the engine without a kernel on these devices, and the router's float32 product.
PORTABLE = {
    "deep_gmm.gemm": "float32 operands (the router)",
    "deep_gmm.grouped_swiglu_mlp": "no fused expert kernel",
    "flash_mla.decode": "no attention kernel",
    "flash_mla.prefill": "no attention kernel",
    "sampling.sample": "no kernel",
}


@pytest.fixture(params=DEVICES)
def device(request):
    """A simulated device; skipped only where the simulator is not there."""
    try:
        return deepinfer.device(request.param)
    except BackendUnavailable as error:
        pytest.skip(f"the simulator cannot be opened: {error}")


def check(device, teacher, lengths: list[int], new: int) -> None:
    """The rule of test_equality.py with these prompts, and the ops that had no kernel."""
    before = dict(device.statistics)
    options = {"num_blocks": 24, "max_model_len": 256, "activation_dtype": "bfloat16"}
    check_bfloat16("shipped", SHIPPED, teacher, lengths, new, device, **options)
    calls = {
        name.removeprefix("fallback:"): count - before.get(name, 0)
        for name, count in device.statistics.items()
        if name.startswith("fallback:") and count != before.get(name, 0)
    }
    found = {op: {entry.kernel.name for entry in cache.values()} for op, cache in device.dispatch_cache.items()}
    print(device.spec, "kernels:", found, "calls on the portable tier:", calls)
    assert set(calls) <= set(PORTABLE)
    own = device.props.arch.replace("_", "")  # sm90 or sm100, as kernels are named
    for op in ("deep_gmm.gemm", "deep_gmm.masked_grouped_gemm"):
        assert any(name.startswith(f"{own}_") for name in found[op]), found[op]


def test_first_model_by_the_equality_rule(device, teacher) -> None:
    check(device, teacher, [9, 30], 6)


def greedy(device, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]], str]:
    """(tokens, gaps between the two best log-probabilities, what the engine says about graphs)."""
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=2)
    options = {"num_blocks": 16, "max_model_len": 128, "activation_dtype": "bfloat16", "seed": 0}
    with LLM(SHIPPED, device, "bfloat16", **options) as llm:
        made = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
        said = str(llm.decode_graphs())
    gaps = []
    for best in made:
        ranked = [sorted((entry.logprob for entry in step.values()), reverse=True) for step in best.logprobs]
        gaps.append([values[0] - values[1] for values in ranked])
    return [best.token_ids for best in made], gaps, said


def test_as_on_cpu_alone_and_together(device) -> None:
    """Tokens are the cpu's up to where its two best lie within GAP; there are no graphs, and the engine says so."""
    prompts = prompt_pieces("shipped", 0, [12, 5])
    wanted, gaps, _ = greedy("cpu", prompts)
    together, _, said = greedy(device, prompts)
    assert "GRAPHS" in said
    alone, _, _ = greedy(device, prompts[1:2])
    for found, best, gap in [*zip(together, wanted, gaps, strict=True), (alone[0], wanted[1], gaps[1])]:
        first = next((i for i, (x, y) in enumerate(zip(found, best, strict=True)) if x != y), None)
        assert first is None or gap[first] <= GAP


@pytest.mark.long
def test_first_model_long(device, teacher) -> None:
    check(device, teacher, [1, 5, 64, 130, 190], 24)
