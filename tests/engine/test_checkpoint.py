"""Damaged checkpoints: every kind of damage is a CheckpointError that names the file and the tensor or field."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from deepinfer.engine import LLM
from deepinfer.errors import CheckpointError
from deepinfer.models import load_config, open_weights, parse_config

Q = "model.layers.0.self_attn.q_b_proj.weight"
GATE = "model.layers.1.mlp.gate.weight"
FILE = "model.safetensors"


@pytest.fixture
def copy(checkpoints, tmp_path) -> Path:
    """A private copy of a small checkpoint."""
    target = tmp_path / "model"
    shutil.copytree(checkpoints("v3-groups-yarn", torch.bfloat16), target)
    return target


def opened(path: Path):
    return open_weights(path, load_config(path), None)


def refused(path: Path, *mentions: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        opened(path)
    for text in mentions:
        assert text in str(caught.value)
    with pytest.raises(CheckpointError):
        LLM(path, "cpu")


def edit(path: Path, change) -> None:
    tensors = load_file(path / FILE)
    change(tensors)
    save_file(tensors, path / FILE)


def test_the_copy_is_good(copy) -> None:
    assert opened(copy).matrix(Q).dtype == torch.bfloat16


@pytest.mark.parametrize("name", [Q, GATE, "lm_head.weight", "model.layers.2.mlp.experts.7.down_proj.weight"])
def test_missing_tensor(copy, name) -> None:
    edit(copy, lambda tensors: tensors.pop(name))
    refused(copy, name, "missing", str(copy))


@pytest.mark.parametrize(
    "name",
    [
        "model.extra.weight",
        "model.layers.9.mlp.gate.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.mlp.experts.8.up_proj.weight",
        "model.layers.0.self_attn.q_b_proj.weight_scale_inv",
    ],
)
def test_extra_tensor(copy, name) -> None:
    edit(copy, lambda tensors: tensors.update({name: torch.zeros(2, 2, dtype=torch.bfloat16)}))
    refused(copy, name, FILE)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.3.embed_tokens.weight",
        "model.layers.3.eh_proj.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ],
)
def test_known_extras_are_ignored(copy, name) -> None:
    edit(copy, lambda tensors: tensors.update({name: torch.zeros(2, 2, dtype=torch.bfloat16)}))
    opened(copy)


@pytest.mark.parametrize("name", [Q, GATE, "model.norm.weight", "model.embed_tokens.weight"])
@pytest.mark.parametrize("shape", ["transposed", "longer", "flat", "empty"])
def test_misshapen_tensor(copy, name, shape) -> None:
    def change(tensors) -> None:
        t = tensors[name]
        forms = {
            "transposed": t.t() if t.ndim == 2 else t[:, None],
            "longer": torch.cat([t, t]),
            "flat": t.flatten()[None],
            "empty": t[:0],
        }
        tensors[name] = forms[shape].contiguous()

    edit(copy, change)
    refused(copy, name, FILE, "shape")


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float64, torch.int64, torch.uint8, torch.float8_e4m3fn, torch.bool]
)
@pytest.mark.parametrize("name", [Q, GATE, "model.norm.weight", "lm_head.weight"])
def test_mistyped_tensor(copy, name, dtype) -> None:
    edit(copy, lambda tensors: tensors.update({name: tensors[name].float().to(dtype)}))
    refused(copy, name, FILE, "dtype")


def test_a_wider_linear_is_mistyped_but_a_float32_router_is_usual(copy) -> None:
    edit(copy, lambda tensors: tensors.update({GATE: tensors[GATE].float()}))
    opened(copy)
    edit(copy, lambda tensors: tensors.update({Q: tensors[Q].float()}))
    refused(copy, Q, "dtype")


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, -1, -1000])
def test_truncated_file(copy, keep) -> None:
    data = (copy / FILE).read_bytes()
    (copy / FILE).write_bytes(data[:keep])
    refused(copy, FILE)


def test_trailing_bytes(copy) -> None:
    with (copy / FILE).open("ab") as file:
        file.write(b"x" * 16)
    refused(copy, FILE, "16 bytes")


def rewrite_header(path: Path, change) -> None:
    data = (path / FILE).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = change(data[8 : 8 + length])
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    (path / FILE).write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])


def field(name: str, key: str, value):
    def change(header: bytes):
        table = json.loads(header)
        table[name][key] = value
        return table

    return change


HEADERS = {
    "not-json": (lambda header: b"{" + header, ["corrupt header"]),
    "not-utf8": (lambda header: b"\xff" + header, ["corrupt header"]),
    "a-list": (lambda header: b"[]", ["corrupt header"]),
    "empty": (lambda header: b"", ["corrupt header"]),
    "duplicate": (lambda header: header[:-1].rstrip().removesuffix(b"}") + b',"a":1,"a":2}}', ["corrupt header"]),
    "no-dtype": (field(Q, "dtype", None), [Q, "dtype"]),
    "unknown-dtype": (field(Q, "dtype", "F4"), [Q, "dtype", "F4"]),
    "negative-shape": (field(Q, "shape", [-1, 4]), [Q, "shape"]),
    "text-shape": (field(Q, "shape", "4"), [Q, "shape"]),
    "huge-shape": (field(Q, "shape", [2**62, 2**62]), [Q, "data_offsets"]),
    "bool-shape": (field(Q, "shape", [True, 4]), [Q, "shape"]),
    "reversed": (field(Q, "data_offsets", [64, 0]), [Q, "data_offsets"]),
    "one-offset": (field(Q, "data_offsets", [64]), [Q, "data_offsets"]),
    "far-away": (field(Q, "data_offsets", [10**12, 10**12 + 3840]), [Q]),
    "overlap": (field(Q, "data_offsets", [0, 6400]), ["overlaps", "tensor"]),
    "entry-is-text": (lambda header: {**json.loads(header), Q: "x"}, [Q, "corrupt header"]),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_corrupt_header(copy, kind) -> None:
    change, mentions = HEADERS[kind]
    rewrite_header(copy, change)
    refused(copy, FILE, *mentions)


@pytest.mark.parametrize("length", [2**63, 2**40, 100_000_001])
def test_absurd_header_length(copy, length) -> None:
    data = (copy / FILE).read_bytes()
    (copy / FILE).write_bytes(struct.pack("<Q", length) + data[8:])
    refused(copy, FILE, "corrupt header")


def test_no_weights_and_no_pickle(copy) -> None:
    (copy / FILE).rename(copy / "pytorch_model.bin")
    refused(copy, str(copy), "pytorch_model.bin", "cannot be used")


def shard(path: Path) -> dict[str, str]:
    tensors = load_file(path / FILE)
    (path / FILE).unlink()
    names, index = sorted(tensors), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, path / file)
        index.update(dict.fromkeys(part, file))
    write_index(path, index)
    return index


def write_index(path: Path, index) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def test_shards(copy) -> None:
    whole = opened(copy).matrix(Q)
    index = shard(copy)
    assert torch.equal(opened(copy).matrix(Q), whole)
    file = index[Q]
    write_index(copy, {name: entry for name, entry in index.items() if name != Q})
    refused(copy, file, Q)
    write_index(copy, {**index, "model.ghost.weight": file})
    refused(copy, file, "model.ghost.weight")
    for bad in ("../other.safetensors", "/etc/passwd", "weights.bin"):
        write_index(copy, {**index, Q: bad})
        refused(copy, "index.json", bad)
    write_index(copy, [1])
    refused(copy, "index.json", "weight_map")
    write_index(copy, index)
    (copy / file).unlink()
    refused(copy, file)


def test_bad_json_files(copy) -> None:
    good = (copy / "config.json").read_text()
    for text in ("", "{", "[]", "null", '"x"', good[:-20]):
        (copy / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            LLM(copy, "cpu")
    (copy / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        LLM(copy, "cpu")
    with pytest.raises(CheckpointError, match="nowhere"):
        LLM(copy / "nowhere", "cpu")


FIELDS = {
    "model_type": "llama",
    "hidden_size": 0,
    "vocab_size": "99",
    "num_attention_heads": -2,
    "num_key_value_heads": 1,
    "hidden_act": "gelu",
    "qk_rope_head_dim": 15,
    "n_group": 3,
    "num_experts_per_tok": 99,
    "rms_norm_eps": -1,
    "norm_topk_prob": "yes",
    "topk_method": "magic",
    "scoring_func": "relu",
    "dtype": "float16",
    "eos_token_id": [-1],
    "rope_parameters": {"rope_type": "longrope"},
    "num_hidden_layers": 1.5,
    "quantization_config": {"quant_method": "awq"},
}


@pytest.mark.parametrize("name", FIELDS)
def test_bad_config_field(copy, name) -> None:
    data = json.loads((copy / "config.json").read_text())
    with pytest.raises(CheckpointError) as caught:
        parse_config({**data, name: FIELDS[name]}, "here/config.json")
    assert "here/config.json" in str(caught.value)
    assert (name if name not in ("rope_parameters", "quantization_config") else name.split("_")[0]) in str(caught.value)


def test_both_spellings_mean_the_same(copy) -> None:
    new = json.loads((copy / "config.json").read_text())
    old = dict(new)
    rope = dict(old.pop("rope_parameters"))
    old["torch_dtype"] = old.pop("dtype")
    old["rope_theta"] = rope.pop("rope_theta")
    rope.pop("rope_type")
    old["rope_scaling"] = rope
    assert parse_config(old) == parse_config(new)
    assert parse_config(old).softmax_scale == parse_config(new).softmax_scale != parse_config(new).qk_head_dim ** -0.5
    assert parse_config({**old, "rope_scaling": None}).rope.scaling is None


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_damage_never_crashes(checkpoints, data) -> None:
    random_damage(checkpoints, data)


@pytest.mark.long
@settings(max_examples=2500, deadline=None)
@given(st.data())
def test_random_damage_long(checkpoints, data) -> None:
    random_damage(checkpoints, data)


def random_damage(checkpoints, data) -> None:
    """Flip bytes of the header: the headers pass unharmed or a CheckpointError names the file."""
    from deepinfer.models.safetensors_file import read_header, read_tensor

    source = checkpoints("v3-groups-yarn", torch.bfloat16) / FILE
    target = source.parent.parent / f"damaged-{source.parent.name}.safetensors"
    raw = bytearray(source.read_bytes())
    (length,) = struct.unpack("<Q", raw[:8])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, 7 + length))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    target.write_bytes(raw)
    try:
        entries = read_header(target)
    except CheckpointError as error:
        assert target.name in str(error)  # noqa: PT017
    else:
        for entry in list(entries.values())[:3]:
            assert read_tensor(entry).shape == entry.shape


def test_float8_weights(checkpoints, tmp_path) -> None:
    """128x128 block scales: values are data * scale, and scales are checked like weights."""
    path = tmp_path / "fp8"
    shutil.copytree(checkpoints("v3-kernel-shapes", torch.bfloat16), path)
    tensors, plain = load_file(path / FILE), {}
    for name in [n for n in tensors if n.endswith("_proj.weight") or "kv_a_proj_with_mqa" in n]:
        weight = tensors[name].float()
        blocks = tuple(-(-size // 128) for size in weight.shape)
        wide = torch.zeros(blocks[0] * 128, blocks[1] * 128)
        wide[: weight.shape[0], : weight.shape[1]] = weight
        scale = wide.view(blocks[0], 128, blocks[1], 128).abs().amax((1, 3)).clamp(min=1e-12) / 448
        spread = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[: weight.shape[0], : weight.shape[1]]
        tensors[name] = (weight / spread).to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = scale
        plain[name] = tensors[name].float() * spread
    save_file(tensors, path / FILE)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    (path / "config.json").write_text(json.dumps(config))
    weights = open_weights(path, load_config(path), torch.float32)
    for name, value in plain.items():
        assert torch.equal(weights.matrix(name), value)
    save_file(
        {**{k: v for k, v in tensors.items() if not k.endswith("_scale_inv")}, **plain}, tmp_path / "plain.safetensors"
    )
    check_same_tokens(path, config, plain, tensors, tmp_path)
    scale_name = Q + "_scale_inv"
    edit(path, lambda found: found.update({scale_name: torch.ones(9, 9)}))
    refused(path, scale_name, "shape")
    edit(path, lambda found: found.pop(scale_name))
    refused(path, scale_name, "missing")


def check_same_tokens(path, config, plain, tensors, tmp_path) -> None:
    """The float8 checkpoint generates what a float32 checkpoint of the same values generates."""
    from deepinfer.engine import SamplingParams

    other = tmp_path / "plain"
    other.mkdir()
    config = {k: v for k, v in config.items() if k != "quantization_config"} | {"dtype": "float32"}
    (other / "config.json").write_text(json.dumps(config))
    values = {n: t.float() for n, t in tensors.items() if not n.endswith("_scale_inv")} | plain
    save_file(values, other / FILE)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    outputs = []
    for directory in (path, other):
        with LLM(directory, "cpu", "float32") as llm:
            outputs.append(llm.generate([1, 2, 3, 4], params, use_tqdm=False)[0].outputs[0].token_ids)
    assert outputs[0] == outputs[1]
