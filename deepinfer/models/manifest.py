"""The tensors a checkpoint must hold for a configuration, and the comparison of a checkpoint's headers with that list.

Invariant: `check_entries` passes only if every tensor the model reads is there with the right shape and a legal dtype,
and nothing is there that the model would silently leave out (next-token-prediction layers, rotary tables and a head
that is tied to the embedding are the known exceptions).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from deepinfer.errors import CheckpointError
from deepinfer.models.config import ModelConfig
from deepinfer.models.safetensors_file import Entry

SCALE = "_scale_inv"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Wanted:
    """One tensor. `kind`: "linear" may be fp8 with a scale, "matrix" never is, "small" may also be float32."""

    shape: tuple[int, ...]
    kind: str = "linear"


def manifest(config: ModelConfig) -> dict[str, Wanted]:
    """Every tensor of the model by checkpoint name, block scales excluded."""
    return dict(wanted_tensors(config))


def wanted_tensors(config: ModelConfig) -> Iterator[tuple[str, Wanted]]:
    """The same one by one: a damaged config.json may ask for more tensors than fit anywhere."""
    c = config
    yield EMBEDDING, Wanted((c.vocab_size, c.hidden_size), "matrix")
    yield "model.norm.weight", Wanted((c.hidden_size,), "small")
    if not c.tie_word_embeddings:
        yield HEAD, Wanted((c.vocab_size, c.hidden_size), "matrix")
    for layer in range(c.layers):
        prefix = f"model.layers.{layer}."
        for part in (_norms(c), _attention(c), _moe(c) if c.is_moe(layer) else _mlp(c, "mlp.", c.intermediate_size)):
            for name, wanted in part:
                yield prefix + name, wanted


def _norms(c: ModelConfig) -> Iterator[tuple[str, Wanted]]:
    yield "input_layernorm.weight", Wanted((c.hidden_size,), "small")
    yield "post_attention_layernorm.weight", Wanted((c.hidden_size,), "small")


def _attention(c: ModelConfig) -> Iterator[tuple[str, Wanted]]:
    p, q_out = "self_attn.", c.heads * c.qk_head_dim
    if c.q_lora_rank is None:
        yield p + "q_proj.weight", Wanted((q_out, c.hidden_size))
    else:
        yield p + "q_a_proj.weight", Wanted((c.q_lora_rank, c.hidden_size))
        yield p + "q_a_layernorm.weight", Wanted((c.q_lora_rank,), "small")
        yield p + "q_b_proj.weight", Wanted((q_out, c.q_lora_rank))
    yield p + "kv_a_proj_with_mqa.weight", Wanted((c.latent_dim, c.hidden_size))
    yield p + "kv_a_layernorm.weight", Wanted((c.kv_lora_rank,), "small")
    yield p + "kv_b_proj.weight", Wanted((c.heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank))
    yield p + "o_proj.weight", Wanted((c.hidden_size, c.heads * c.v_head_dim))
    if c.attention_bias:
        if c.q_lora_rank is not None:
            yield p + "q_a_proj.bias", Wanted((c.q_lora_rank,), "small")
        yield p + "kv_a_proj_with_mqa.bias", Wanted((c.latent_dim,), "small")
        yield p + "o_proj.bias", Wanted((c.hidden_size,), "small")


def _mlp(c: ModelConfig, prefix: str, width: int, bias: bool | None = None) -> Iterator[tuple[str, Wanted]]:
    for name in ("gate_proj", "up_proj"):
        yield f"{prefix}{name}.weight", Wanted((width, c.hidden_size))
    yield f"{prefix}down_proj.weight", Wanted((c.hidden_size, width))
    if c.mlp_bias if bias is None else bias:
        for name, size in (("gate_proj", width), ("up_proj", width), ("down_proj", c.hidden_size)):
            yield f"{prefix}{name}.bias", Wanted((size,), "small")


def _moe(c: ModelConfig) -> Iterator[tuple[str, Wanted]]:
    routing = c.routing
    if routing is None:
        return
    yield "mlp.gate.weight", Wanted((routing.experts, c.hidden_size), "small")
    if routing.correction_bias:
        yield "mlp.gate.e_score_correction_bias", Wanted((routing.experts,), "small")
    for expert in range(routing.experts):
        yield from _mlp(c, f"mlp.experts.{expert}.", c.moe_intermediate_size, bias=False)
    if c.n_shared_experts:
        yield from _mlp(c, "mlp.shared_experts.", c.moe_intermediate_size * c.n_shared_experts)


def check_entries(directory: Path, entries: Mapping[str, Entry], config: ModelConfig) -> torch.dtype:
    """Compare the checkpoint's headers with what the model needs; returns the dtype its linears are stored in.

    Raises:
        CheckpointError: naming file and tensor of the first that is missing, extra, misshapen or mistyped.
    """
    wanted: dict[str, Wanted] = {}
    stored = config.dtype or _infer_dtype(directory, entries)
    for name, want in wanted_tensors(config):
        wanted[name] = want
        entry = entries.get(name)
        if entry is None:
            raise CheckpointError(
                f"{_place(directory, entries)}: tensor {name!r}: is missing, config.json asks for it with shape "
                f"{list(want.shape)}"
            )
        if entry.shape != want.shape:
            raise CheckpointError(
                f"{entry.file}: tensor {name!r}: shape: got {list(entry.shape)}, must be {list(want.shape)} "
                "by config.json"
            )
        _check_dtype(entry, want, entries, config, stored)
    for name, entry in entries.items():
        if name not in wanted and not _ignorable(name, entries, wanted, config):
            raise CheckpointError(
                f"{entry.file}: tensor {name!r}: is not part of the model that config.json describes, it would be left "
                "out silently"
            )
    return stored


def _place(directory: Path, entries: Mapping[str, Entry]) -> Path:
    """Where something is missing: the one file of a checkpoint, else its directory."""
    files = {entry.file for entry in entries.values()}
    return files.pop() if len(files) == 1 else directory


def _infer_dtype(directory: Path, entries: Mapping[str, Entry]) -> torch.dtype:
    entry = entries.get(EMBEDDING)
    if entry is None:
        raise CheckpointError(f"{_place(directory, entries)}: tensor {EMBEDDING!r}: is missing")
    if entry.dtype not in (torch.float32, torch.bfloat16):
        raise CheckpointError(
            f"{entry.file}: tensor {entry.name!r}: dtype: got {entry.dtype}, must be float32 or bfloat16"
        )
    return entry.dtype


def _check_dtype(entry: Entry, want: Wanted, entries: Mapping[str, Entry], c: ModelConfig, stored: torch.dtype) -> None:
    where = f"{entry.file}: tensor {entry.name!r}"
    if want.kind == "linear" and c.fp8_block is not None and entry.dtype == torch.float8_e4m3fn:
        _check_scale(entry, entries, c.fp8_block)
        return
    allowed = {stored, torch.float32} if want.kind == "small" else {stored}
    if entry.dtype not in allowed:
        names = " or ".join(sorted(str(dtype) for dtype in allowed))
        fp8 = " or torch.float8_e4m3fn with a scale" if want.kind == "linear" and c.fp8_block is not None else ""
        raise CheckpointError(f"{where}: dtype: got {entry.dtype}, must be {names}{fp8}")


def _check_scale(entry: Entry, entries: Mapping[str, Entry], block: tuple[int, int]) -> None:
    name = entry.name + SCALE
    scale = entries.get(name)
    shape = tuple(-(-size // step) for size, step in zip(entry.shape, block, strict=True))
    if scale is None:
        raise CheckpointError(
            f"{entry.file}: tensor {name!r}: is missing, the float8 weight needs it with shape {list(shape)}"
        )
    if scale.shape != shape:
        raise CheckpointError(f"{scale.file}: tensor {name!r}: shape: got {list(scale.shape)}, must be {list(shape)}")
    if scale.dtype != torch.float32:
        raise CheckpointError(f"{scale.file}: tensor {name!r}: dtype: got {scale.dtype}, must be torch.float32")


_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def _ignorable(name: str, entries: Mapping[str, Entry], wanted: Mapping[str, Wanted], c: ModelConfig) -> bool:
    if 0 in entries[name].shape:  # no numbers: what width-0 shared experts of other code are stored as
        return True
    found = _LAYER.match(name)
    if found is not None and c.layers <= int(found[1]) < c.layers + max(c.mtp_layers, 1):
        return True
    if name.endswith(SCALE):
        weight = name.removesuffix(SCALE)
        return c.fp8_block is not None and weight in wanted and entries[weight].dtype == torch.float8_e4m3fn
    if name.endswith(".rotary_emb.inv_freq"):
        return True
    return name == HEAD and entries[name].shape == (c.vocab_size, c.hidden_size)
