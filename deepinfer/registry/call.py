"""The description of one op call that validation, `supports` and `plan` look at: metadata only, never tensor data.

Invariant: a `Call` is a pure function of the dispatch key, so everything derived from it may be cached.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


class Kind(enum.Enum):
    """Type of one op parameter in its canonical (flat) form; values are torch.library schema types."""

    TENSOR = "Tensor"
    OPT_TENSOR = "Tensor?"
    INT = "int"
    OPT_INT = "int?"
    FLOAT = "float"
    OPT_FLOAT = "float?"
    BOOL = "bool"
    STR = "str"
    OPT_STR = "str?"
    INTS = "int[]"
    DTYPE = "ScalarType"
    OPT_DTYPE = "ScalarType?"

    @property
    def is_tensor(self) -> bool:
        """Whether values are tensors (or None)."""
        return self in (Kind.TENSOR, Kind.OPT_TENSOR)


_MISSING: Any = object()
_REAL = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class Param:
    """A named parameter. `mutated` marks tensors the op writes in place (its name ends in `_`, or it is a cache)."""

    name: str
    kind: Kind = Kind.TENSOR
    mutated: bool = False
    default: Any = _MISSING

    @property
    def required(self) -> bool:
        """Whether the parameter has no default."""
        return self.default is _MISSING


@dataclass(frozen=True)
class TensorMeta:
    """Shape (elements), dtype, strides (elements), device of one tensor, and whether its data is 16-byte aligned."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    device: torch.device
    aligned: bool = True

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps between rows."""
        return self.numel * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in order without gaps; strides of size-1 dimensions do not matter."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= max(size, 1)
        return True

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorMeta:
        real = type(tensor) in _REAL and tensor.device.type != "meta"  # fake tensors have no address
        aligned = not real or tensor.data_ptr() % 16 == 0
        return TensorMeta(tuple(tensor.shape), tensor.dtype, tensor.stride(), tensor.device, aligned)

    @staticmethod
    def dense(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> TensorMeta:
        """Metadata of a new contiguous tensor."""
        strides: list[int] = []
        step = 1
        for size in reversed(shape):
            strides.append(step)
            step *= max(size, 1)
        return TensorMeta(tuple(shape), dtype, tuple(reversed(strides)), device)


@dataclass(frozen=True)
class Call:
    """One call of op `op`: canonical arguments by name, tensors replaced by `TensorMeta` (None where absent)."""

    op: str
    args: Mapping[str, Any]
    device: torch.device
    out: tuple[TensorMeta, ...] | None = None

    def __getitem__(self, name: str) -> Any:
        return self.args[name]


@dataclass(frozen=True)
class Cost:
    """Work of one call that a roofline needs: floating-point operations and bytes (each input once, output once)."""

    flops: float
    nbytes: float
