"""Checks of `ExpertBuffer` arguments. Each raises InvalidArgument naming argument, value, rule and nearest value."""

from __future__ import annotations

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.deep_ep.geometry import Geometry
from deepinfer.ops.deep_ep.rows import Rows, format_code, tensors
from deepinfer.ops.quantized import Quantized
from deepinfer.registry import TensorMeta

DEFAULT_TIMEOUT = 30.0


def is_count(value: object) -> bool:
    """Whether `value` is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def positive(arg: str, value: object) -> float:
    """`value` as a positive, finite number of seconds."""
    number = checks.number("deep_ep", arg, value)
    if not 0 < number < float("inf"):
        raise invalid(f"deep_ep: {arg}", value, "must be a positive number of seconds", nearest=DEFAULT_TIMEOUT)
    return number


def choice(op: str, arg: str, value: object, allowed: tuple[str, ...]) -> None:
    """`value` must be one of `allowed`."""
    if value not in allowed:
        raise invalid(f"{op}: {arg}", value, f"must be one of {allowed}", nearest=repr(allowed[0]))


def alignment(op: str, layout: str, alignment: object) -> None:
    """`alignment` must suit `layout`."""
    if checks.integer(op, "alignment", alignment) < 1:
        raise invalid(f"{op}: alignment", alignment, "must be >= 1", nearest=1)
    if layout == "tokens" and alignment != 1:
        raise invalid(f"{op}: alignment", alignment, "applies to layout='experts' only", nearest=1)


def lanes(
    op: str, arg: str, value: object, tokens: int, geometry: Geometry, device: torch.device,
    dtypes: tuple[torch.dtype, ...],
) -> None:
    """`value` must have one entry per token and slot."""
    tensor(op, arg, value, (tokens, geometry.top_k), dtypes, "[T,K]", device)


def tensor(
    op: str, arg: str, value: object, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], letters: str,
    device: torch.device,
) -> None:
    """`value` must be a tensor of this shape (`letters` show it), one of these dtypes, on `device`."""
    if not isinstance(value, torch.Tensor):
        raise invalid(f"{op}: {arg}", type(value).__name__, "must be a torch.Tensor")
    meta = TensorMeta.of(value)
    checks.shape(op, arg, meta, shape, letters)
    checks.dtype(op, arg, meta, dtypes)
    if meta.device.type != device.type or (meta.device.index or 0) != (device.index or 0):
        raise invalid(f"{op}: {arg}", str(meta.device), "must lie on the buffer's device", nearest=str(device))


def ids(op: str, ids: torch.Tensor, experts: int) -> None:
    """The rules that `validate=True` adds."""
    if bool((ids >= experts).any()):
        raise invalid(f"{op}: topk_idx", int(ids.max()), f"must be < num_experts = {experts}", nearest=experts - 1)
    ordered = ids.sort(dim=1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if bool(twice.any()):
        token = int(twice.any(1).nonzero()[0])
        raise invalid(f"{op}: topk_idx[{token}]", ids[token].tolist(), "must not name an expert twice")


def result_rows(op: str, x: Rows, out: Rows, capacity: int, sync: bool) -> None:
    """`out` of a dispatch must be capacity-sized rows of x's format on x's device."""
    if sync:
        raise invalid(f"{op}: out", "a value", "is only for sync=False, where the number of rows is known")
    if isinstance(x, Quantized) and isinstance(out, Quantized):
        same = format_code(out) == format_code(x)
    else:
        same = isinstance(out, torch.Tensor) and isinstance(x, torch.Tensor)
    if not same:
        raise invalid(f"{op}: out", type(out).__name__, "must have the format of x")
    for given, part in zip(tensors(out), tensors(x), strict=True):
        shape = (capacity, part.shape[1])
        tensor(op, "out", given, shape, (part.dtype,), "[capacity, as x]", part.device)
        if not given.is_contiguous():
            raise invalid(f"{op}: out", given.stride(), "must be contiguous")
