"""The public surface: results in order, failures alone, stops, seeds, streaming, chat, log-probs, two engines."""

from __future__ import annotations

import json
import math
import re
import shutil
import threading

import pytest
import torch

from deepinfer.engine import LLM, EngineConfig, SamplingParams
from deepinfer.errors import CheckpointError, DeepInferError, InvalidArgument, UnsupportedError
from deepinfer.hal import use_backend

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
TEXT = "def parse_config(path):\n    "


@pytest.fixture(scope="module")
def llm(checkpoints):
    with LLM(checkpoints("shipped"), "cpu", max_num_seqs=6, max_num_batched_tokens=64, block_size=16, seed=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def bare(checkpoints):
    """A float32 engine without a tokenizer."""
    with LLM(checkpoints("v3-groups-yarn"), "cpu", "float32", block_size=8, num_blocks=40, seed=3) as engine:
        yield engine


def run(engine: LLM, prompts, params=GREEDY, **options):
    return engine.generate(prompts, params, use_tqdm=False, **options)


def tokens(engine: LLM, prompt, params=GREEDY) -> list[int]:
    (output,) = run(engine, [prompt], params)
    assert output.error is None
    return output.outputs[0].token_ids


def idle(engine: LLM) -> None:
    stats = engine.statistics()
    assert stats["free_blocks"] == stats["blocks"], "a request left blocks behind"


# -- results ---------------------------------------------------------------------------------------------------------


def test_text_and_ids_give_the_same(llm) -> None:
    ids = llm.tokenizer.encode(TEXT)
    by_text, by_ids = run(llm, [TEXT, ids])
    assert by_text.outputs[0].token_ids == by_ids.outputs[0].token_ids
    assert by_text.outputs[0].text == llm.tokenizer.decode(by_text.outputs[0].token_ids) != ""
    assert (by_text.prompt, by_ids.prompt) == (TEXT, None)
    assert by_text.finished
    assert by_text.prompt_token_ids == ids
    idle(llm)


def test_single_prompts_and_none(llm) -> None:
    assert len(run(llm, TEXT)) == 1
    assert len(run(llm, [5, 6, 7])) == 1
    assert run(llm, []) == []


def test_the_trained_model_writes_words(llm) -> None:
    (output,) = run(llm, [TEXT], SamplingParams(temperature=0.0, max_tokens=120))
    text = output.outputs[0].text
    assert text.isascii()
    known = {"the", "a", "to", "of", "in", "is", "def", "return", "self", "path", "if", "for", "import", "not"}
    words = re.findall("[a-z_]+", text)
    assert sum(word in known for word in words) >= len(words) // 4 >= 3


def test_one_result_per_prompt_whatever_fails(bare) -> None:
    bad = [[], [99], [-1], ["x"], [1.5], "text without tokenizer", 7, None, [1] * 400, [[1]], b"x", [True]]
    good = [[1, 2, 3], [4]]
    prompts = [good[0], *bad, good[1]]
    outputs = run(bare, prompts)
    assert len(outputs) == len(prompts)
    for output in outputs[1:-1]:
        assert isinstance(output.error, InvalidArgument), output.prompt_token_ids
        assert output.outputs[0].finish_reason == "error"
        assert output.finished
    for prompt, output in ((good[0], outputs[0]), (good[1], outputs[-1])):
        assert output.error is None
        assert output.outputs[0].token_ids == tokens(bare, prompt)
    idle(bare)


@pytest.mark.parametrize("token", [-1, 99, 2**31, 2**40])
def test_bad_ids_in_parameters_fail_alone(bare, token) -> None:  # C60
    params = [GREEDY, SamplingParams(logit_bias={token: 1.0}), SamplingParams(stop_token_ids=[token])]
    good, *failed = run(bare, [[1, 2]] * 3, params)
    assert good.error is None
    for output in failed:
        assert str(token) in str(output.error)


def test_top_k_above_the_vocabulary_clamps(bare) -> None:  # C60
    one = SamplingParams(seed=5, max_tokens=8, ignore_eos=True)
    many = SamplingParams(seed=5, max_tokens=8, ignore_eos=True, top_k=10**6)
    assert tokens(bare, [1, 2], one) == tokens(bare, [1, 2], many)


def test_what_is_not_there_is_refused_not_ignored(bare) -> None:
    (output,) = run(bare, [[1]], SamplingParams(structured_outputs={"json": {}}))
    assert isinstance(output.error, UnsupportedError)
    (output,) = run(bare, [[1]], SamplingParams(stop="x"))
    assert "tokenizer" in str(output.error)
    with pytest.raises(InvalidArgument, match="chat template"):
        bare.chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_list_lengths_must_match(bare, count) -> None:
    with pytest.raises(InvalidArgument, match="sampling_params"):
        run(bare, [[1], [2]], [GREEDY] * count)
    with pytest.raises(InvalidArgument, match="priority"):
        run(bare, [[1], [2]], priority=[0] * count)


@pytest.mark.parametrize("prompts", [5, None, b"x", {"a": 1}, 1.5])
def test_wrong_containers_raise(bare, prompts) -> None:
    with pytest.raises(InvalidArgument, match="prompts"):
        run(bare, prompts)


# -- ends ------------------------------------------------------------------------------------------------------------


def test_lengths(bare) -> None:
    free = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (0, 1, 5)]
    outputs = run(bare, [[1, 2]] * 3, free)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [0, 1, 5]
    assert {o.outputs[0].finish_reason for o in outputs} == {"length"}
    (output,) = run(bare, [[1, 2]], SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == bare.max_model_len - 2


def test_stop_tokens_and_end_of_sequence(bare) -> None:
    free = tokens(bare, [1, 2, 3])
    stop = free[4]
    first = free.index(stop)
    (output,) = run(
        bare, [[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=[stop], ignore_eos=True)
    )
    assert output.outputs[0].token_ids == free[: first + 1]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)


def test_min_tokens_makes_ends_impossible(bare) -> None:
    stop = tokens(bare, [1, 2, 3])[0]
    params = SamplingParams(temperature=0.0, max_tokens=12, min_tokens=6, stop_token_ids=[stop], ignore_eos=True)
    found = tokens(bare, [1, 2, 3], params)
    assert stop not in found[:6]
    assert len(found) >= 6


@pytest.mark.parametrize("source", ["generation_config", "config", "tokenizer_config"])
def test_every_source_of_the_end_token_counts(checkpoints, tmp_path, source) -> None:  # C68
    path = tmp_path / "model"
    shutil.copytree(checkpoints("shipped"), path)
    forced = {257: 100.0}
    for name in ("generation_config", "config", "tokenizer_config"):
        data = json.loads((path / f"{name}.json").read_text())
        key = "eos_token" if name == "tokenizer_config" else "eos_token_id"
        if name != source:
            data.pop(key, None)
        assert name != source or key in data
        (path / f"{name}.json").write_text(json.dumps(data))
    with LLM(path, "cpu") as engine:
        (output,) = run(engine, ["x"], SamplingParams(temperature=0.0, logit_bias=forced))
        assert output.outputs[0].token_ids == [257]
        assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", None)
        assert output.outputs[0].text == ""


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_across_tokens(llm, include) -> None:
    free = run(llm, [TEXT], SamplingParams(temperature=0.0, max_tokens=40))[0].outputs[0].text
    stop = free[7:12]
    params = SamplingParams(
        temperature=0.0, max_tokens=40, stop=["never there", stop], include_stop_str_in_output=include
    )
    (output,) = run(llm, [TEXT], params)
    end = free.index(stop) + (len(stop) if include else 0)
    assert output.outputs[0].text == free[:end]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)
    pieces = list(llm.generate_stream([TEXT], params))
    assert "".join(piece.text for piece in pieces) == free[:end]


# -- sampling --------------------------------------------------------------------------------------------------------


def test_seeds_are_reproducible_alone_and_in_any_batch(bare) -> None:  # C57
    prompts = [[i + 1, 2, 3] for i in range(6)]
    params = [SamplingParams(seed=100 + i, max_tokens=10, ignore_eos=True, top_p=0.95) for i in range(6)]
    together = [o.outputs[0].token_ids for o in run(bare, prompts, params)]
    order = [4, 2, 0, 5, 1, 3]
    permuted = run(bare, [prompts[i] for i in order], [params[i] for i in order])
    assert [o.outputs[0].token_ids for o in permuted] == [together[i] for i in order]
    assert [tokens(bare, p, s) for p, s in zip(prompts, params, strict=True)] == together


def test_requests_without_seed_differ(bare) -> None:
    outputs = run(bare, [[1, 2, 3]] * 4, SamplingParams(max_tokens=12, ignore_eos=True))
    assert len({tuple(o.outputs[0].token_ids) for o in outputs}) > 1


def test_samples_of_one_prompt(bare) -> None:
    params = SamplingParams(n=5, seed=7, max_tokens=10, ignore_eos=True)
    (output,) = run(bare, [[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]], params)
    found = [tuple(sample.token_ids) for sample in output.outputs]
    assert [sample.index for sample in output.outputs] == list(range(5))
    assert len(set(found)) > 1
    (again,) = run(bare, [[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]], params)
    assert [tuple(sample.token_ids) for sample in again.outputs] == found
    greedy = SamplingParams(n=3, temperature=0.0, max_tokens=12, ignore_eos=True)
    (same,) = run(bare, [[9, 8, 7, 6, 5]], greedy)
    assert [s.token_ids for s in same.outputs] == [tokens(bare, [9, 8, 7, 6, 5])] * 3
    idle(bare)


def test_many_samples_in_a_tiny_pool(checkpoints) -> None:
    params = SamplingParams(n=7, seed=7, max_tokens=20, ignore_eos=True)
    options = {"block_size": 4, "max_model_len": 32}
    with LLM(checkpoints("v3-groups-yarn"), "cpu", "float32", **options) as wide:
        expected = [s.token_ids for s in run(wide, [[5, 4, 3, 2, 1]], params)[0].outputs]
    with LLM(checkpoints("v3-groups-yarn"), "cpu", "float32", num_blocks=8, max_num_seqs=3, **options) as tight:
        assert [s.token_ids for s in run(tight, [[5, 4, 3, 2, 1]], params)[0].outputs] == expected
        idle(tight)


def test_logit_bias_and_penalties(bare) -> None:
    biased = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logit_bias={42: 1000.0})
    assert tokens(bare, [1, 2], biased) == [42] * 5
    once = SamplingParams(
        temperature=0.0,
        max_tokens=5,
        ignore_eos=True,
        logit_bias={42: 15.0},
        presence_penalty=2.0,
        frequency_penalty=2.0,
        repetition_penalty=1e6,
    )
    assert tokens(bare, [1, 2], once).count(42) == 1
    mixed = run(bare, [[1, 2], [1, 2], [3]], [GREEDY, once, biased])
    assert mixed[0].outputs[0].token_ids == tokens(bare, [1, 2])
    assert mixed[1].outputs[0].token_ids == tokens(bare, [1, 2], once)


def test_penalties_match_a_plain_loop(bare) -> None:
    prompt, new = [1, 2, 3, 2, 1], 90
    params = SamplingParams(
        temperature=0.0,
        max_tokens=new,
        ignore_eos=True,
        repetition_penalty=1.3,
        presence_penalty=0.2,
        frequency_penalty=0.1,
    )
    found = tokens(bare, prompt, params)
    table = bare.score([prompt + found], full_vocab=True)[0].double()
    for step, token in enumerate(found):
        before, made = prompt + found[:step], found[:step]
        logits = table[len(before) - 1].clone()
        expected = adjusted(bare, prompt + found[:step], made, logits, params)
        assert token == int(expected.argmax())


def adjusted(engine, before, made, logits, params) -> torch.Tensor:
    """Penalties on logits; the engine's logits differ from log-probs by a constant, which repetition depends on."""
    core = engine._parts.core
    raw = raw_logits(core, before)
    assert torch.allclose(raw - raw.logsumexp(-1), logits, atol=1e-4)
    for token in set(before):
        raw[token] = (
            raw[token] / params.repetition_penalty if raw[token] > 0 else raw[token] * params.repetition_penalty
        )
    for token in set(made):
        raw[token] -= params.presence_penalty + params.frequency_penalty * made.count(token)
    return raw


def raw_logits(core, before: list[int]) -> torch.Tensor:
    from deepinfer.models import StepInput

    n = len(before)
    blocks = -(-n // core.pool.page)
    cache = core.model.new_cache(blocks, core.pool.page)
    i = torch.arange(n)
    step = StepInput(
        torch.tensor(before), i, i, torch.arange(blocks)[None], torch.tensor([n]), torch.tensor([0, n]), 0, None
    )
    with use_backend(core.device):
        return core.model.logits(core.model.forward(step, cache)[-1:])[0].double()


# -- log-probabilities -----------------------------------------------------------------------------------------------


def test_logprobs(llm) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=3, prompt_logprobs=2)
    (output,) = run(llm, [TEXT], params)
    sample = output.outputs[0]
    assert len(sample.logprobs) == len(sample.token_ids)
    table = llm.score([output.prompt_token_ids + sample.token_ids], full_vocab=True)[0]
    start = len(output.prompt_token_ids)
    for step, (token, entry) in enumerate(zip(sample.token_ids, sample.logprobs, strict=True)):
        best = table[start + step - 1].topk(3)
        assert [t for t, _ in sorted(entry.items(), key=lambda item: item[1].rank)] == best.indices.tolist()
        assert entry[token].rank == 1
        assert entry[token].decoded_token == llm.tokenizer.decode([token], skip_special=False)
        assert math.isclose(entry[token].logprob, best.values[0].item(), abs_tol=1e-3)
    chosen = [entry[token].logprob for token, entry in zip(sample.token_ids, sample.logprobs, strict=True)]
    assert math.isclose(sample.cumulative_logprob, sum(chosen))
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == start
    tokens_after_first = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    assert all(token in entry and 2 <= len(entry) <= 3 for token, entry in tokens_after_first)


@pytest.mark.parametrize("budget", [8, 64])
def test_score_does_not_depend_on_chunks_or_the_cache(checkpoints, budget) -> None:
    options = {"max_num_batched_tokens": budget, "max_num_seqs": 4, "block_size": 4}
    prompts = [list(range(50)), [7], list(range(20))]
    with LLM(checkpoints("v2-groups"), "cpu", "float32", **options) as engine:
        run(engine, prompts)
        full = engine.score(prompts, full_vocab=True)
        given = engine.score(prompts)
        idle(engine)
    for prompt, table, line in zip(prompts, full, given, strict=True):
        assert table.shape == (len(prompt), 99)
        assert torch.allclose(table.exp().sum(-1), torch.ones(len(prompt)), atol=1e-5)
        assert line[0].isnan()
        assert torch.allclose(line[1:], table[:-1].gather(1, torch.tensor(prompt)[1:, None])[:, 0], atol=1e-6)
    with LLM(checkpoints("v2-groups"), "cpu", "float32") as engine:
        for table, other in zip(full, engine.score(prompts, full_vocab=True), strict=True):
            assert torch.allclose(table, other, atol=1e-5)


def test_score_names_the_bad_prompt(bare) -> None:
    with pytest.raises(InvalidArgument, match=r"prompts\[1\]"):
        bare.score([[1], [], [2]])


# -- cache, preemption, chunks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"enable_prefix_caching": False},
        {"num_blocks": 16},
        {"max_num_batched_tokens": 7, "max_num_seqs": 3},
        {"max_num_seqs": 1, "max_num_batched_tokens": 1},
        {"block_size": 1},
        {"block_size": 64, "num_blocks": 2},
    ],
    ids=str,
)
def test_options_that_change_nothing(checkpoints, options) -> None:
    """Cache, pool size, chunks, batch mix and block size change no token; a pool of one request makes progress."""
    shared = list(range(30))
    prompts = [[*shared, i, i] for i in range(5)] + [[3], shared, shared]
    params = [SamplingParams(temperature=float(i % 2), seed=i, max_tokens=16, ignore_eos=True) for i in range(8)]
    path = checkpoints("v3-groups-yarn")
    with LLM(path, "cpu", "float32") as plain:
        expected = [tokens(plain, p, s) for p, s in zip(prompts, params, strict=True)]
    with LLM(path, "cpu", "float32", **{"block_size": 4, "max_model_len": 60, **options}) as engine:
        for _ in range(2):
            outputs = run(engine, prompts, params)
            assert [o.outputs[0].token_ids for o in outputs] == expected
            idle(engine)
        if options == {"num_blocks": 16}:
            assert any(o.metrics.preemptions for o in outputs)
        if "enable_prefix_caching" in options:
            assert not any(o.metrics.cached_tokens for o in outputs)
        elif options.get("block_size") == 1:
            assert all(o.metrics.cached_tokens == len(p) - 1 for o, p in zip(outputs, prompts, strict=True))


def test_cache_salt_separates(bare) -> None:
    prompt = list(range(40))
    run(bare, [prompt], cache_salt="a")
    assert run(bare, [prompt], cache_salt="a")[0].metrics.cached_tokens == 32
    assert run(bare, [prompt], cache_salt="b")[0].metrics.cached_tokens == 0
    assert bare.statistics()["prefix_hit_rate"] > 0


# -- streaming -------------------------------------------------------------------------------------------------------


def test_stream_equals_generate(llm) -> None:
    prompts = [TEXT, "import os\n", "# \u00e4\u20ac\U0001f600"]
    params = SamplingParams(n=2, seed=3, max_tokens=30, temperature=1.5)
    whole = run(llm, prompts, params)
    text = {(i, s.index): "" for i, o in enumerate(whole) for s in o.outputs}
    ids: dict = {key: [] for key in text}
    ended: dict = {}
    for piece in llm.generate_stream(prompts, params):
        key = (piece.prompt_index, piece.index)
        assert key not in ended, "an increment after the last one"
        text[key] += piece.text
        ids[key] += piece.token_ids
        if piece.finish_reason:
            ended[key] = piece.finish_reason
    for i, output in enumerate(whole):
        for sample in output.outputs:
            assert ids[i, sample.index] == sample.token_ids
            assert text[i, sample.index] == sample.text
            assert ended[i, sample.index] == sample.finish_reason


def test_stream_reports_failures_and_can_be_closed(bare) -> None:
    pieces = list(bare.generate_stream([[1], []], GREEDY))
    assert [p.prompt_index for p in pieces if p.error] == [1]
    stream = bare.generate_stream([[1, 2, 3]] * 3, GREEDY)
    next(stream)
    inside = tokens(bare, [1, 2, 3])  # another call while a stream is open
    stream.close()
    idle(bare)
    assert inside == tokens(bare, [1, 2, 3])


def test_threads_share_one_engine(bare) -> None:
    expected = [tokens(bare, [i + 1]) for i in range(6)]
    found: dict[int, list[int]] = {}
    workers = [threading.Thread(target=lambda i=i: found.update({i: tokens(bare, [i + 1])})) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [found[i] for i in range(6)] == expected


# -- chat ------------------------------------------------------------------------------------------------------------


def test_chat(llm, checkpoints, tmp_path) -> None:
    messages = [{"role": "user", "content": "hello"}]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.prompt == "<|begin|># user: hello\n# assistant:"
    assert output.prompt_token_ids[0] == 256
    assert output.prompt_token_ids.count(256) == 1
    two = llm.chat([messages, [{"role": 5}]], GREEDY, use_tqdm=False)
    assert two[0].outputs[0].token_ids == output.outputs[0].token_ids
    assert isinstance(two[1].error, DeepInferError)
    for bad in (None, 5, "x", [], [5]):
        with pytest.raises(InvalidArgument, match="messages") if bad != [5] else pytest.MonkeyPatch.context():
            results = llm.chat(bad, use_tqdm=False)
            assert results[0].error is not None


def test_chat_stream_is_chat_in_pieces(llm) -> None:
    messages = [{"role": "user", "content": "hello"}]
    (whole,) = llm.chat(messages, GREEDY, use_tqdm=False)
    pieces = list(llm.chat_stream(messages, GREEDY))
    assert len(pieces) > 3
    assert [t for piece in pieces for t in piece.token_ids] == whole.outputs[0].token_ids
    assert "".join(piece.text for piece in pieces) == whole.outputs[0].text
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert {piece.prompt_index for piece in pieces} == {0}
    raw = llm.chat_stream(messages, GREEDY, add_generation_prompt=False)
    (other,) = llm.chat(messages, GREEDY, use_tqdm=False, add_generation_prompt=False)
    assert [t for piece in raw for t in piece.token_ids] == other.outputs[0].token_ids
    idle(llm)


def test_chat_stream_of_several_where_one_is_refused(llm) -> None:
    talks = [[{"role": "user", "content": "a"}], [{"role": 5}], [{"role": "user", "content": "b"}]]
    wanted = llm.chat(talks, GREEDY, use_tqdm=False)
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    errors = []
    for piece in llm.chat_stream(talks, GREEDY, cache_salt="mine"):
        found[piece.prompt_index] += piece.token_ids
        errors += [(piece.prompt_index, type(piece.error))] if piece.error else []
    assert found == {i: output.outputs[0].token_ids for i, output in enumerate(wanted)}
    assert errors == [(1, type(wanted[1].error))]
    idle(llm)


def test_chat_stream_begins_and_ends_like_a_stream(llm, bare) -> None:
    with pytest.raises(InvalidArgument, match="chat template"):
        bare.chat_stream([{"role": "user", "content": "x"}])  # before the first increment is asked for
    with pytest.raises(InvalidArgument, match="messages"):
        llm.chat_stream("x")
    stream = llm.chat_stream([{"role": "user", "content": "hello"}], SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    assert llm.statistics()["free_blocks"] < llm.statistics()["blocks"]
    stream.close()
    idle(llm)


TEMPLATES = {
    "attack": ("{{ messages.__class__.__mro__ }}", "fails"),
    "mutation": ("{{ messages.append(1) }}", "fails"),
    "endless": ("{% for i in range(10**9) %}{% endfor %}", "fails"),
    "refusal": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    "undefined": ("{{ nothing.at.all }}", "fails"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_foreign_code(name) -> None:
    from deepinfer.engine.chat import ChatTemplate

    source, message = TEMPLATES[name]
    with pytest.raises(InvalidArgument, match=message):
        ChatTemplate(source, {}, "here").render([{"role": "user", "content": "x"}], True)


def test_content_may_come_in_parts() -> None:
    """A template that knows texts alone gets the parts joined; one that looks at their types gets them as they are."""
    from deepinfer.engine.chat import ChatTemplate

    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    plain = ChatTemplate("{% for m in messages %}[{{ m['content'] }}]{% endfor %}", {}, "here")
    assert plain.render(messages, True) == "[s][a\nb]"
    assert messages[1]["content"] is parts
    for bad in ([{"type": "image", "url": "x"}], ["a"], [{"type": "text"}]):
        with pytest.raises(InvalidArgument, match=r"messages\[0\]\['content'\]"):
            plain.render([{"role": "user", "content": bad}], True)
    source = "{% for m in messages[1:] %}{% for p in m.content %}{% if p['type'] == 'text' %}<{{ p.text }}>{% endif %}"
    typed = ChatTemplate(source + "{% endfor %}{% endfor %}", {}, "here")
    assert typed.render(messages, True) == "<a><b>"


def test_the_tag_of_training_templates_is_known() -> None:
    from deepinfer.engine.chat import ChatTemplate

    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
    assert ChatTemplate(source, {}, "here").render([{"role": "user", "content": "x"}] * 2, True) == "x;x;"
    with pytest.raises(CheckpointError, match="generation"):
        ChatTemplate("{% generation %}", {}, "here")


def test_fifty_turns(llm) -> None:
    talk = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"{i}"} for i in range(51)]
    (output,) = llm.chat(talk, GREEDY, use_tqdm=False)
    assert output.error is None
    assert output.prompt.count("# user") == 26
    (again,) = llm.chat(talk, GREEDY, use_tqdm=False)
    assert again.metrics.cached_tokens >= len(output.prompt_token_ids) - 16
    (long,) = llm.chat(talk * 3, GREEDY, use_tqdm=False)
    assert "max_model_len" in str(long.error)


def test_template_syntax_and_sources(checkpoints, tmp_path) -> None:
    path = tmp_path / "model"
    shutil.copytree(checkpoints("shipped"), path)
    (path / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}{{ eos_token }}")
    with LLM(path, "cpu") as engine:
        assert engine.chat([{"role": "user", "content": "a"}], GREEDY, use_tqdm=False)[0].prompt == "[a]<|end|>"
    (path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(CheckpointError, match="chat template"):
        LLM(path, "cpu")
    (path / "chat_template.jinja").unlink()
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        LLM(path, "cpu")


# -- engines ---------------------------------------------------------------------------------------------------------


def test_two_engines_are_independent(checkpoints) -> None:
    a = LLM(checkpoints("v3-groups-yarn"), "cpu", "float32", block_size=4, num_blocks=20, max_model_len=64)
    b = LLM(checkpoints("v2-greedy"), "cpu", "float32", block_size=8)
    alone = tokens(a, [1, 2, 3]), tokens(b, [1, 2, 3])
    streams = zip(a.generate_stream([[1, 2, 3]], GREEDY), b.generate_stream([[1, 2, 3]], GREEDY), strict=True)
    pairs = list(streams)
    assert [t for x, _ in pairs for t in x.token_ids] == alone[0]
    assert [t for _, y in pairs for t in y.token_ids] == alone[1]
    b.close()
    b.close()
    assert tokens(a, [1, 2, 3]) == alone[0]
    with pytest.raises(InvalidArgument, match="closed"):
        run(b, [[1]])
    a.close()


def test_seeded_engines_repeat(checkpoints) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    found = []
    for _ in range(2):
        with LLM(checkpoints("v3-groups-yarn"), "cpu", "float32", seed=11) as engine:
            found.append([o.outputs[0].token_ids for o in run(engine, [[1, 2]] * 3, params)])
    assert found[0] == found[1]


def test_dummy_weights_need_no_checkpoint(checkpoints, tmp_path) -> None:
    (tmp_path / "config.json").write_text((checkpoints("v3-kernel-shapes") / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        LLM(tmp_path, "cpu")
    with LLM(tmp_path, "cpu", load_format="dummy") as engine:
        (table,) = engine.score([[1, 2, 3, 4]], full_vocab=True)
        assert table.isfinite().all()
        assert table.std() > 0.1


OPTIONS = {
    "dtype": ["float16", 5],
    "activation_dtype": ["int8"],
    "load_format": ["pickle"],
    "max_model_len": [0, -1, 513, "8"],
    "max_num_seqs": [0, 2.5, True],
    "max_num_batched_tokens": [0, 255],
    "block_size": [0, None],
    "num_blocks": [0, 1.0],
    "memory_fraction": [0.0, 1.5, math.nan],
    "enable_prefix_caching": [1],
    "seed": [-1, 0.5],
    "tokenizer": [5],
    "no_such": [1],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in OPTIONS.items() for v in values])
def test_bad_options(checkpoints, name, value) -> None:
    with pytest.raises(InvalidArgument, match=name):
        LLM(checkpoints("v3-groups-yarn"), "cpu", **{name: value})


def test_a_cache_too_small_says_what_would_fit(checkpoints) -> None:
    with pytest.raises(InvalidArgument, match="max_model_len to 32"):
        LLM(checkpoints("v3-groups-yarn"), "cpu", max_model_len=100, num_blocks=4, block_size=8)
    with LLM(checkpoints("v3-groups-yarn"), "cpu", num_blocks=4, block_size=8) as engine:
        assert engine.max_model_len == 32


def test_config_is_frozen() -> None:
    with pytest.raises(AttributeError):
        EngineConfig().block_size = 1


def test_a_failing_step_fails_its_requests_and_nothing_else(checkpoints, monkeypatch) -> None:
    with LLM(checkpoints("v3-groups-yarn"), "cpu", "float32", max_num_seqs=2) as engine:
        expected = tokens(engine, [1, 2, 3])
        model, calls = engine._parts.core.model, []
        forward = model.forward

        def fails_once(step, cache):
            calls.append(step)
            if len(calls) == 3:
                raise RuntimeError("out of memory")
            return forward(step, cache)

        monkeypatch.setattr(model, "forward", fails_once)
        *failed, good = run(engine, [[1, 2, 3]] * 3)
        for output in failed:
            assert "out of memory" in str(output.error)
            assert output.outputs[0].finish_reason == "error"
            assert output.outputs[0].token_ids == expected[:2], "what was produced before is kept"
        assert good.outputs[0].token_ids == expected
        idle(engine)


def test_an_interrupt_leaves_a_usable_engine(bare, monkeypatch) -> None:
    model = bare._parts.core.model

    def interrupted(step, cache):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(bare, [[1, 2, 3]])
    idle(bare)
    assert len(tokens(bare, [1, 2, 3])) == 12


def test_nan_fails_alone(checkpoints) -> None:  # C56
    with LLM(checkpoints("v3-groups-yarn"), "cpu", "float32") as engine:
        expected = tokens(engine, [1, 2, 3])
        model = engine._parts.core.model
        model.embedding = model.embedding.clone()
        model.embedding[50] = math.nan
        good, bad, also = run(engine, [[1, 2, 3], [1, 50, 3], [1, 2, 3]])
        assert isinstance(bad.error, DeepInferError)
        assert "NaN" in str(bad.error)
        assert bad.outputs[0].finish_reason == "error"
        assert good.outputs[0].token_ids == also.outputs[0].token_ids == expected
        idle(engine)
