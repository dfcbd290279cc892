"""Options that claim to change nothing change no bit on the cpu backend: chunks, prefix cache, batch mix, block size,
threads. What is compared is every token and every log-probability, of prompts and of what follows them.

One fresh engine with nothing but one request gives the reference; others must equal it whatever they do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from deepinfer.conformance.engine_model import CONFIG
from deepinfer.engine import LLM, SamplingParams

GENERATE = (Phase.explicit, Phase.generate)  # an example takes a second, so shrinking would take minutes
NEW = 5
SHIPPED = Path(__file__).parents[2] / "examples" / "models" / "tiny-v3"
# Both sides of a row tile (4), a product's least number of keys (16), a cache block (64) and a block of keys (128).
LENGTHS = (1, 2, 3, 5, 15, 16, 17, 63, 64, 65, 127, 129, 150)
# (weights and activations); the last one is a random model whose widths are no multiples of a vector.
MODES = (("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"), ("odd", "float32"))
ODD = {
    "hidden_size": 99, "vocab_size": 251, "q_lora_rank": 37, "kv_lora_rank": 48, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 21, "v_head_dim": 19, "intermediate_size": 51, "moe_intermediate_size": 33,
    "num_attention_heads": 3, "num_key_value_heads": 3, "num_experts_per_tok": 3,
}
Result = tuple[list[int], list[float], list[float | None]]
Run = Callable[[list[int], dict[str, Any]], list[Result]]


def prompt(length: int) -> list[int]:
    """The prompt of this length; those of 63 tokens and more share their first 61."""
    shared = [(7 * i * i + i) % 250 for i in range(61)] if length > 61 else []
    return shared + [(13 * i * i + length * length + i) % 250 for i in range(length - len(shared))]


def results(llm: LLM, lengths: list[int]) -> list[Result]:
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)
    scored = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=0)
    prompts = [prompt(length) for length in lengths]
    found: list[Result] = []
    outputs = llm.generate(prompts, params, use_tqdm=False)
    for given_ids, output, score in zip(prompts, outputs, llm.generate(prompts, scored, use_tqdm=False), strict=True):
        assert output.error is None
        assert score.error is None
        sample = output.outputs[0]
        logs = [table[token].logprob for token, table in zip(sample.token_ids, sample.logprobs, strict=True)]
        before = [None if table is None else table[token].logprob
                  for token, table in zip(given_ids, score.prompt_logprobs, strict=True)]
        found.append((list(sample.token_ids), logs, before))
    return found


@pytest.fixture(scope="module", params=MODES, ids="-".join)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LLM]]:
    """Makes (and keeps) engines of one mode by their options."""
    weights, activations = request.param
    made: dict[tuple[Any, ...], LLM] = {}
    path, fixed = SHIPPED, {"dtype": weights, "activation_dtype": activations, "max_model_len": 192}
    if weights == "odd":
        path = tmp_path_factory.mktemp("odd")
        (path / "config.json").write_text(json.dumps({**CONFIG, **ODD}), "utf-8")
        fixed |= {"dtype": "float32", "load_format": "dummy", "seed": 5}

    def engine(**options: Any) -> LLM:
        key = tuple(sorted(options.items()))
        if key not in made:
            made[key] = LLM(path, "cpu", **fixed, **options)
        return made[key]

    yield engine
    for llm in made.values():
        llm.close()


@pytest.fixture(scope="module")
def alone(engines: Callable[..., LLM]) -> Callable[[int], Result]:
    """The result of the prompt of a length that is served by itself, in one chunk, without a prefix cache."""
    known: dict[int, Result] = {}

    def get(length: int) -> Result:
        if length not in known:
            llm = engines(enable_prefix_caching=False, max_num_batched_tokens=256, num_blocks=8)
            (known[length],) = results(llm, [length])
        return known[length]

    return get


# A handful of engines, so that most examples meet a cache that others have filled.
OPTIONS = st.sampled_from(
    [
        {"max_num_batched_tokens": 256, "max_num_seqs": 9, "block_size": 64, "num_blocks": 40},
        {"max_num_batched_tokens": 7, "max_num_seqs": 3, "block_size": 16, "num_blocks": 40},
        {"max_num_batched_tokens": 29, "max_num_seqs": 8, "block_size": 3, "num_blocks": 400},
        {"max_num_batched_tokens": 64, "max_num_seqs": 5, "block_size": 1, "num_blocks": 500},
        {"max_num_batched_tokens": 130, "max_num_seqs": 9, "num_blocks": 30, "enable_prefix_caching": False},
    ]
)


def check(engines: Callable[..., LLM], alone: Callable[[int], Result], lengths: list[int], options: Any) -> None:
    for length, found in zip(lengths, results(engines(**options), lengths), strict=True):
        wanted = alone(length)
        assert found == wanted, f"prompt of {length} tokens among {lengths} with {options}"


@settings(max_examples=6, deadline=None, phases=GENERATE)
@given(st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=9), OPTIONS)
def test_options_change_no_bit(engines, alone, lengths: list[int], options: dict[str, Any]) -> None:
    check(engines, alone, lengths, options)


@pytest.mark.long
@settings(max_examples=60, deadline=None, phases=GENERATE)
@given(st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=12), OPTIONS)
def test_options_change_no_bit_at_length(engines, alone, lengths: list[int], options: dict[str, Any]) -> None:
    check(engines, alone, lengths, options)


def test_threads_change_no_bit(engines, alone) -> None:
    before = torch.get_num_threads()
    lengths = [1, 17, 65, 150]
    wanted = [alone(length) for length in lengths]
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            options = {"max_num_batched_tokens": 100, "max_num_seqs": 9, "enable_prefix_caching": False}
            assert results(engines(**options), lengths) == wanted, f"{threads} threads"
    finally:
        torch.set_num_threads(before)
