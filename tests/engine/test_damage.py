"""Damaged model directories beyond wrong tensors: odd values in every JSON file, files that are no files, sizes that
fit nowhere. Always an error that names the file, in bounded time and memory."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from deepinfer.engine import LLM, SamplingParams
from deepinfer.errors import CheckpointError, DeepInferError, InvalidArgument
from deepinfer.models import load_config, open_weights, parse_config, wanted_tensors
from deepinfer.models.manifest import check_entries
from deepinfer.models.safetensors_file import read_header, read_tensor
from tests.engine.conftest import SHIPPED

BASE: dict[str, Any] = json.loads((SHIPPED / "config.json").read_text("utf-8"))
ODD: tuple[Any, ...] = (
    None, [], {}, "", "x", "\ud800", True, False, -1, 0, 1, 1.5, -0.0, float("nan"), float("inf"), 2**31 - 1, 2**31,
    2**70, 10**400, -(10**400), 1e308, 1e-300, [[]], [None], {"a": 1}, [10**400], "9" * 50,
)  # fmt: skip
JSON_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
OPTIONAL = (*JSON_FILES, "chat_template.jinja", "model.safetensors", "model.safetensors.index.json")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A private copy of the shipped checkpoint."""
    shutil.copytree(SHIPPED, tmp_path / "model")
    return tmp_path / "model"


def set_config(path: Path, **changes: Any) -> None:
    (path / "config.json").write_text(json.dumps({**BASE, **changes}), "utf-8")


def quick(action: Callable[[], Any], seconds: float = 10.0) -> str:
    """The message of the CheckpointError that `action` raises at once."""
    start = time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        action()
    assert time.monotonic() - start < seconds
    assert len(str(caught.value)) < 2000
    return str(caught.value)


# -- config.json -----------------------------------------------------------------------------------------------------


def taken_or_refused(data: dict[str, Any], field: str) -> None:
    try:
        parse_config(data, "here/config.json")
    except CheckpointError as error:
        assert str(error).startswith("here/config.json: "), field  # noqa: PT017


def test_odd_values_of_every_field() -> None:
    for field in {*BASE, "rope_parameters", "quantization_config", "dtype", "mlp_bias", "partial_rotary_factor"}:
        for value in ODD:
            taken_or_refused({**BASE, field: value}, field)
        taken_or_refused({name: value for name, value in BASE.items() if name != field}, field)


@pytest.mark.parametrize("kind", ["yarn", "linear", "default"])
@pytest.mark.parametrize("outer", ["rope_scaling", "rope_parameters"])
def test_odd_values_of_rotary_fields(kind: str, outer: str) -> None:
    good = {"rope_type": kind, "factor": 2.0, "original_max_position_embeddings": 64}
    for field in (*good, "type", "rope_theta", "truncate", "beta_fast", "mscale", "mscale_all_dim", "attention_factor"):
        for value in ODD:
            taken_or_refused({**BASE, outer: {**good, field: value}}, field)


@pytest.mark.parametrize(("changes", "field"), [
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "mscale_all_dim": 1.0}}, "mscale_all_dim"),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"rms_norm_eps": 1e300}, "rms_norm_eps"),
    ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
    ({"model_type": "deepseek_v2", "topk_method": "greedy", "norm_topk_prob": True}, "norm_topk_prob"),
])
def test_what_would_change_the_numbers_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError, match=field):
        parse_config({**BASE, **changes})


def test_fields_left_out_are_those_of_the_class() -> None:
    """Groups and shared experts have other defaults than none; null means none."""
    left = {name: value for name, value in BASE.items() if name not in ("n_group", "topk_group", "n_shared_experts")}
    config = parse_config({**left, "n_routed_experts": 64, "num_experts_per_tok": 8})
    assert config.routing is not None
    assert (config.routing.n_group, config.routing.topk_group, config.n_shared_experts) == (8, 4, 1)
    nulls = parse_config({**left, "n_group": None, "topk_group": None, "n_shared_experts": None})
    assert nulls.routing is not None
    assert (nulls.routing.n_group, nulls.routing.topk_group, nulls.n_shared_experts) == (1, 1, 0)
    second = parse_config({**left, "model_type": "deepseek_v2", "topk_method": "greedy", "norm_topk_prob": False})
    assert second.n_shared_experts == 2


# -- sizes -----------------------------------------------------------------------------------------------------------


def test_more_layers_than_the_file_holds_end_at_the_first_that_is_missing() -> None:
    config = parse_config({**BASE, "num_hidden_layers": 10_000, "n_routed_experts": 65536, "num_experts_per_tok": 2})
    entries = read_header(SHIPPED / "model.safetensors")
    assert "model.safetensors" in quick(lambda: check_entries(SHIPPED, entries, config), 2.0)
    assert next(iter(wanted_tensors(config)))[0] == "model.embed_tokens.weight"


def test_positions_beyond_the_cache_take_no_memory(copy: Path) -> None:
    """The rotary table covers what the cache can hold, not what config.json promises."""
    set_config(copy, max_position_embeddings=2**31 - 1)
    with LLM(copy, "cpu", num_blocks=4) as llm:
        assert llm.max_model_len == 256
        (result,) = llm.generate(["x"], SamplingParams(max_tokens=2), use_tqdm=False)
        assert result.error is None
    with pytest.raises(InvalidArgument, match="max_model_len"):
        LLM(copy, "cpu", num_blocks=4, max_model_len=2**31 - 1)


@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "intermediate_size"])
def test_random_weights_that_fit_nowhere_are_refused(copy: Path, field: str) -> None:
    set_config(copy, **{field: 2**31 - 1})
    with pytest.raises(InvalidArgument, match=r"load_format.*tensor 'model"):
        LLM(copy, "cpu", load_format="dummy", num_blocks=4)


# -- files -----------------------------------------------------------------------------------------------------------


def replace(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("nothing-there")
    else:
        os.mkfifo(path)


@pytest.mark.parametrize("kind", ["directory", "loop", "dangling", "fifo"])
@pytest.mark.parametrize("name", OPTIONAL)
def test_what_is_no_file_is_not_taken_for_an_absent_one(copy: Path, name: str, kind: str) -> None:
    replace(copy / name, kind)
    assert name in quick(lambda: LLM(copy, "cpu", num_blocks=4))


@pytest.mark.parametrize("name", [*JSON_FILES[:3], "model.safetensors.index.json"])
def test_numbers_too_long_to_convert(copy: Path, name: str) -> None:
    (copy / name).write_bytes(b'{"a": ' + b"1" * 5000 + b"}")
    assert name in quick(lambda: LLM(copy, "cpu", num_blocks=4))


def test_a_file_of_absurd_size_is_not_read(copy: Path) -> None:
    with (copy / "config.json").open("ab") as file:
        file.truncate(1 << 40)  # sparse
    assert "config.json" in quick(lambda: load_config(copy))


def write_header(path: Path, header: bytes) -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def test_headers_that_are_costly_to_refuse(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    many = ",".join(f'"t{i}":1' for i in range(60_000))
    write_header(target, f'{{{many},"t59999":1}}'.encode())
    assert "t59999" in quick(lambda: read_header(target))
    huge = f'{{"t":{{"dtype":"F32","shape":{[2**62] * 3000},"data_offsets":[0,4]}}}}'
    assert "'t'" in quick(lambda: read_header(write_header(target, huge.encode())))


def test_a_file_that_vanishes_while_it_is_read(copy: Path) -> None:
    entry = read_header(copy / "model.safetensors")["model.norm.weight"]
    (copy / "model.safetensors").unlink()
    assert "model.norm.weight" in quick(lambda: read_tensor(entry))


def test_a_head_that_is_tied_but_differs(copy: Path) -> None:
    set_config(copy, tie_word_embeddings=True)
    assert "lm_head.weight" in quick(lambda: open_weights(copy, load_config(copy), None))
    tensors = load_file(copy / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, copy / "model.safetensors")
    assert open_weights(copy, load_config(copy), None).dtype is torch.bfloat16


def test_missing_tensors_name_the_one_file(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if name != "model.norm.weight"}, copy / "model.safetensors")
    assert "model.safetensors: tensor 'model.norm.weight'" in quick(lambda: LLM(copy, "cpu", num_blocks=4))


# -- anything --------------------------------------------------------------------------------------------------------


def mutate(r: random.Random, path: Path) -> None:
    """Replace or remove one to three values anywhere in a JSON file."""
    document = json.loads(path.read_text("utf-8"))
    for _ in range(r.randint(1, 3)):
        node: Any = document
        while node:
            key = r.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if isinstance(node[key], dict | list) and node[key] and r.random() < 0.8:
                node = node[key]
                continue
            if isinstance(node, dict) and r.random() < 0.2:
                del node[key]
            else:
                node[key] = r.choice(ODD)
            break
    path.write_text(json.dumps(document), "utf-8")


def flip(r: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    reach = len(data) if path.suffix == ".json" else 8 + int.from_bytes(data[:8], "little")
    for _ in range(r.randint(1, 5)):
        data[r.randrange(reach)] = r.randrange(256)
    if r.random() < 0.3:
        del data[r.randrange(len(data)) :]
    path.write_bytes(data)


def damage(tmp_path: Path, seed: int) -> None:
    """One damaged directory: it opens and serves, or an error says which file is to blame."""
    r = random.Random(seed)
    path = tmp_path / "model"
    shutil.copytree(SHIPPED, path, dirs_exist_ok=True)
    name = r.choice([*JSON_FILES, "tokenizer.json", "model.safetensors"])
    if name.endswith(".json") and r.random() < 0.7:
        mutate(r, path / name)
    else:
        flip(r, path / name)
    try:
        with LLM(path, "cpu", num_blocks=16) as llm:
            params = SamplingParams(max_tokens=3, logprobs=1)
            results = llm.generate(["def é <|end|>", [1, 2, 3]], params, use_tqdm=False)
            assert len(results) == 2
            llm.chat([{"role": "user", "content": "x"}], params, use_tqdm=False)
    except DeepInferError as error:
        message = str(error)
        assert any(word in message for word in (name, "config.json", "chat template")), f"seed {seed}: {message}"


def test_any_damage(tmp_path: Path) -> None:
    for seed in range(60):
        damage(tmp_path, seed)


@pytest.mark.long
def test_any_damage_long(tmp_path: Path) -> None:
    for seed in range(60, 4000):
        damage(tmp_path, seed)
