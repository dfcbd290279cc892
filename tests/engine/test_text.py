"""Detokenisation piece by piece, stop strings anywhere, and parameters under random input."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine import LLM, SamplingParams
from deepinfer.engine.detokenize import REPLACEMENT, TextStream
from deepinfer.engine.tokenizer import open_tokenizer
from deepinfer.errors import DeepInferError, InvalidArgument


@pytest.fixture(scope="module")
def tokenizer(checkpoints):
    return open_tokenizer(checkpoints("shipped"))


@pytest.fixture(scope="module")
def bare(checkpoints):
    with LLM(checkpoints("v3-groups-yarn"), "cpu", "float32", block_size=8, num_blocks=40, seed=3) as engine:
        yield engine


def pieces(stream: TextStream, tokens: list[int]) -> list[str]:
    found = []
    for token in tokens:
        stop = stream.push([token])
        found.append(stream.take(stop is not None))
        if stop is not None:
            return found
    stream.finish()
    found.append(stream.take(True))
    return found


def check_bytes(tokenizer, tokens: list[int]) -> None:
    found = pieces(TextStream(tokenizer, True), tokens)
    assert "".join(found) == tokenizer.decode(tokens)


def check_text(tokenizer, text: str) -> None:
    """Valid text comes out whole, and no piece ever holds a part of a character."""
    tokens = list(text.encode())
    found = pieces(TextStream(tokenizer, True), tokens)
    assert "".join(found) == text
    if REPLACEMENT not in text:
        assert all(REPLACEMENT not in piece for piece in found)


def check_stops(tokenizer, text: str, stops: list[str], keep: bool) -> None:
    """The text is cut at the first match, and nothing behind or inside it was given out before."""
    found = pieces(TextStream(tokenizer, True, stops, keep), list(text.encode()))
    whole = "".join(found)
    ends = {}
    for end in range(len(text) + 1):  # the match that is complete first, the longest one there
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            ends = {end: max(hits, key=len)}
            break
    if not ends:
        assert whole == text
    else:
        ((end, stop),) = ends.items()
        assert whole == (text[:end] if keep else text[: end - len(stop)])


def check_minimum(tokenizer, text: str, stops: list[str], keep: bool, least: int) -> None:
    """Stops are looked for from token number `least`: one that ended before is text, one that ends later counts even
    where it began before. What was streamed is what is kept."""
    tokens = tokenizer.encode(text, special=False)
    stream = TextStream(tokenizer, True, stops, keep)
    streamed, wanted, settled = "", None, ""
    for count, token in enumerate(tokens, 1):
        before, settled = settled, tokenizer.decode(tokens[:count]).rstrip(REPLACEMENT)
        ends = [(end, stop) for stop in stops for end in range(len(before) + 1, len(settled) + 1)
                if settled[:end].endswith(stop)]
        found = stream.push([token], count >= least)
        streamed += stream.take(found is not None)
        if count >= least and ends:
            starts = [(end - len(stop), -len(stop), end) for end, stop in ends]
            at, _, end = min(starts)
            wanted = settled[: end if keep else at]
            assert found is not None
            break
        assert found is None
    if wanted is None:
        stream.finish(len(tokens) >= least)
        streamed += stream.take(True)
        wanted = text
    assert stream.text == streamed == wanted


any_text = st.text(st.characters(codec="utf-8"), max_size=60)
few = st.text("ab\u20ac\U0001f600", max_size=30)
stop_lists = st.lists(st.text("ab\u20ac", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 258), max_size=80), any_text, few, stop_lists, st.booleans(), st.integers(0, 40))
def test_pieces(tokenizer, tokens, text, short, stops, keep, least) -> None:
    check_minimum(tokenizer, short, stops, keep, least)
    check_bytes(tokenizer, tokens)
    check_text(tokenizer, text)
    check_stops(tokenizer, short, stops, keep)


@pytest.mark.long
@settings(max_examples=2000, deadline=None)
@given(st.lists(st.integers(0, 258), max_size=200), any_text, few, stop_lists, st.booleans(), st.integers(0, 60))
def test_pieces_long(tokenizer, tokens, text, short, stops, keep, least) -> None:
    check_minimum(tokenizer, short, stops, keep, least)
    check_bytes(tokenizer, tokens)
    check_text(tokenizer, text)
    check_stops(tokenizer, short, stops, keep)


def test_a_stop_string_ends_inside_a_token() -> None:
    class Words:
        def decode(self, ids, skip_special=True) -> str:
            return "".join(["ab", "cST", "OPde"][i] for i in ids)

    stream = TextStream(Words(), True, ["STOP"])
    assert pieces(stream, [0, 1, 2]) == ["ab", "c", ""]
    assert stream.text == "abc"


def test_a_stop_string_that_ended_before_min_tokens_is_text(checkpoints) -> None:
    with LLM(checkpoints("shipped"), "cpu", num_blocks=16) as llm:
        free = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        text = llm.generate(["import "], free, use_tqdm=False)[0].outputs[0].text
        stops = [text[1], "\x00" * 40]
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, stop=stops, min_tokens=4)
        (result,) = llm.generate(["import "], params, use_tqdm=False)
        pieces = list(llm.generate_stream(["import "], params))
    end = text.find(text[1], 3)
    assert result.outputs[0].text == "".join(piece.text for piece in pieces) == (text if end < 0 else text[:end])


# -- parameters ------------------------------------------------------------------------------------------------------

junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=2),
    st.lists(st.integers(-3, 120), max_size=3),
    st.dictionaries(st.integers(-2, 120), st.floats(-9, 9), max_size=2),
)
NAMES = [
    "n", "temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "ignore_eos", "stop", "stop_token_ids",
    "include_stop_str_in_output", "seed", "logprobs", "prompt_logprobs", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias", "detokenize", "skip_special_tokens",
]  # fmt: skip
sane = st.fixed_dictionaries(
    {"max_tokens": st.integers(0, 4)},
    optional={
        "n": st.integers(1, 3), "temperature": st.floats(0, 3), "top_p": st.floats(0.01, 1),
        "top_k": st.integers(-1, 200),
        "min_p": st.floats(0, 1), "ignore_eos": st.booleans(), "seed": st.integers(-(2**63), 2**63 - 1),
        "stop_token_ids": st.lists(st.integers(-1, 100), max_size=2), "logprobs": st.integers(-1, 100),
        "prompt_logprobs": st.integers(-1, 100), "repetition_penalty": st.floats(0.1, 3),
        "presence_penalty": st.floats(-2, 2), "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(-1, 100), st.floats(-100, 100), max_size=3),
    },
)  # fmt: skip


def check_junk(name: str, value) -> None:
    """Any value of any field gives valid parameters or an error that names the field."""
    try:
        params = SamplingParams(**{name: value})
    except InvalidArgument as error:
        assert name in str(error)  # noqa: PT017
    else:
        kept = getattr(params, name)
        assert kept == value or name in ("stop", "stop_token_ids", "logit_bias")


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), junk)
def test_any_field_value(name, value) -> None:
    check_junk(name, value)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(st.sampled_from(NAMES), junk)
def test_any_field_value_long(name, value) -> None:
    check_junk(name, value)


def check_requests(engine, prompts, options) -> None:
    """Whatever comes: one finished result per prompt, legal tokens or an error, and no block is lost."""
    params = [SamplingParams(**option) for option in options]
    outputs = engine.generate(prompts, params, use_tqdm=False)
    assert len(outputs) == len(prompts)
    for prompt, wanted, output in zip(prompts, params, outputs, strict=True):
        assert len(output.outputs) == wanted.n
        assert output.finished
        good = bool(prompt) and all(0 <= token < 99 for token in prompt)
        assert good or isinstance(output.error, DeepInferError)
        for sample in output.outputs:
            assert all(0 <= token < 99 for token in sample.token_ids)
            assert len(sample.token_ids) <= wanted.max_tokens
            assert (sample.finish_reason == "error") == (output.error is not None)
            if output.error is None and wanted.logprobs is not None:
                assert len(sample.logprobs) == len(sample.token_ids)
                assert all(
                    math.isfinite(entry[t].logprob) for t, entry in zip(sample.token_ids, sample.logprobs, strict=True)
                )
    assert engine.statistics()["free_blocks"] == engine.statistics()["blocks"]


requests = st.lists(st.tuples(st.lists(st.integers(-1, 99), max_size=40), sane), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(requests)
def test_any_request(bare, given_requests) -> None:
    check_requests(bare, [p for p, _ in given_requests], [o for _, o in given_requests])


@pytest.mark.long
@settings(max_examples=1200, deadline=None)
@given(requests)
def test_any_request_long(bare, given_requests) -> None:
    check_requests(bare, [p for p, _ in given_requests], [o for _, o in given_requests])
