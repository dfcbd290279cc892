"""`EngineConfig`: every choice an engine is built with, in one frozen and validated object.

Invariant: an engine reads its choices from here alone, so two engines in one process cannot influence each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from deepinfer.engine.validate import boolean, choice, integer, number
from deepinfer.errors import invalid

DTYPES = ("auto", "float32", "bfloat16")
LOAD_FORMATS = ("auto", "safetensors", "dummy")


@dataclass(frozen=True)
class EngineConfig:
    """Options of an engine.

    Attributes:
        dtype: "auto" (as the checkpoint is stored), "float32" or "bfloat16".
        activation_dtype: what is computed in between: "auto", "float32" or "bfloat16" (then the weights must be too).
            "auto" is the weights' dtype, except on host processors: they multiply bfloat16 in float32 anyway, so
            float32 is faster there and rounds nothing.
        load_format: "auto" and "safetensors" read the checkpoint; "dummy" draws well-scaled random weights.
        tokenizer: directory with the tokenizer files; None = the model directory.
        max_model_len: longest prompt plus output in tokens; None = what the model and the cache allow.
        max_num_seqs: sequences that may run at the same time.
        max_num_batched_tokens: tokens of one step, prompt chunks and decoding sequences together.
        block_size: tokens of one cache block; also the unit of prefix reuse.
        num_blocks: cache blocks; None = from `memory_fraction`.
        memory_fraction: share of the device's free memory that the cache may take when `num_blocks` is None; None = 0.9
            on a device with its own memory and 0.25 where the host's memory is shared.
        enable_prefix_caching: reuse cache blocks of equal prompt beginnings.
        decode_graphs: capture decode steps as graphs: "auto" (where the device can, batch sizes as they occur; what
            keeps it from working is in `LLM.decode_graphs()`), False, or the batch sizes to capture when the engine is
            opened, for all lengths; then a step that cannot be captured is an error.
        seed: seed of the engine's own random choices (seeds of requests that bring none, dummy weights); None = fresh.
    """

    dtype: str = "auto"
    activation_dtype: str = "auto"
    load_format: str = "auto"
    tokenizer: str | Path | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 64
    num_blocks: int | None = None
    memory_fraction: float | None = None
    enable_prefix_caching: bool = True
    decode_graphs: str | bool | Sequence[int] = "auto"
    seed: int | None = None

    def __post_init__(self) -> None:
        choice("dtype", self.dtype, DTYPES)
        choice("activation_dtype", self.activation_dtype, DTYPES)
        if self.activation_dtype == "bfloat16" and self.dtype == "float32":
            raise invalid("activation_dtype", "bfloat16", "weights of dtype float32 need it too", nearest="'float32'")
        choice("load_format", self.load_format, LOAD_FORMATS)
        if self.tokenizer is not None and not isinstance(self.tokenizer, str | Path):
            raise invalid("tokenizer", self.tokenizer, "must be a directory or None")
        integer("max_num_seqs", self.max_num_seqs, 1, 65536)
        integer("max_num_batched_tokens", self.max_num_batched_tokens, 1, 2**24)
        integer("block_size", self.block_size, 1, 65536)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise invalid(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"must be >= max_num_seqs ({self.max_num_seqs}): every running sequence takes one token of a step",
                nearest=self.max_num_seqs,
            )
        for name, low, high in (("max_model_len", 1, 2**31 - 1), ("num_blocks", 1, 2**31 - 1), ("seed", 0, 2**63 - 1)):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), low, high)
        if self.memory_fraction is not None:
            number("memory_fraction", self.memory_fraction, 0.0, 1.0, low_open=True)
        boolean("enable_prefix_caching", self.enable_prefix_caching)
        object.__setattr__(self, "decode_graphs", _graph_sizes(self.decode_graphs, self.max_num_seqs))


def _graph_sizes(value: Any, most: int) -> str | bool | tuple[int, ...]:
    """ "auto", False, or batch sizes in ascending order."""
    if value is False or (isinstance(value, str) and value == "auto"):
        return value
    if isinstance(value, str | bool) or not isinstance(value, Sequence) or not value:
        raise invalid("decode_graphs", value, "must be 'auto', False or a list of batch sizes", nearest="'auto'")
    for index, size in enumerate(value):
        integer(f"decode_graphs[{index}]", size, 1, most)
    return tuple(sorted(set(value)))


def make_config(options: dict[str, Any]) -> EngineConfig:
    """An `EngineConfig` from keyword arguments; an unknown name is an error that lists the known ones."""
    known = [field.name for field in fields(EngineConfig)]
    for name in options:
        if name not in known:
            raise invalid("LLM", name, f"must be an option of the engine: {', '.join(known)}")
    return EngineConfig(**options)
