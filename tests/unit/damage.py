"""Ways to spoil one argument of an op call; every choice comes from the given `random.Random`."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from deepinfer.registry.call import Param

HUGE = 1 << 40
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (*FLOATS, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64)
ODD_FLOATS = (float("nan"), float("inf"), float("-inf"), 1e4, -1e4, 1e-45, 0.0, -0.0)
ODD_INTS = (-1, -2, 0, 1, 7, 2**15, 2**31 - 1, -(2**31), 2**40, -(2**40), 2**63 - 1, -(2**63))
Damage = Callable[[random.Random, Any], Any]


def _axis(rng: random.Random, t: torch.Tensor) -> int:
    return rng.randrange(t.ndim) if t.ndim else 0


def wrong_rank(rng: random.Random, t: torch.Tensor) -> Any:
    """One dimension more or less, none at all, or very many."""
    how = rng.randrange(5)
    if how == 0:
        return t.unsqueeze(rng.randint(0, t.ndim))
    if how == 1:
        return t.reshape(-1)
    if how == 2:
        return t.reshape(-1)[0] if t.numel() else t.new_zeros(())
    if how == 3 and t.ndim and t.shape[0]:
        return t[0]
    return t.reshape(*[1] * 20, *t.shape)


def wrong_size(rng: random.Random, t: torch.Tensor) -> Any:
    """One dimension longer or shorter by one, twice as long, or empty."""
    if not t.ndim:
        return t.reshape(1)
    axis = _axis(rng, t)
    size = t.shape[axis]
    wanted = rng.choice([size + 1, max(size - 1, 0), 0, 2 * size + 1])
    if size == 0:
        shape = list(t.shape)
        shape[axis] = wanted
        return t.new_zeros(shape)
    return t.index_select(axis, torch.arange(wanted) % size) if t.dtype.itemsize > 1 else _select(t, axis, wanted)


def _select(t: torch.Tensor, axis: int, wanted: int) -> torch.Tensor:
    """index_select for one-byte types that torch does not index (fp8)."""
    raw = t.view(torch.uint8) if t.dtype is not torch.bool else t
    return raw.index_select(axis, torch.arange(wanted) % t.shape[axis]).view(t.dtype)


def huge(rng: random.Random, t: torch.Tensor) -> Any:
    """A dimension of 2^40 or 2^62 elements that costs no memory."""
    if not t.ndim or not t.numel():
        return t
    axis, size = _axis(rng, t), rng.choice([HUGE, 1 << 62])
    shape = list(t.shape)
    shape[axis] = size
    try:
        return t.narrow(axis, 0, 1).expand(shape)
    except RuntimeError:  # more bytes than torch can count
        return t.narrow(axis, 0, 1).expand([HUGE if i == axis else s for i, s in enumerate(t.shape)])


def other_dtype(rng: random.Random, t: torch.Tensor) -> Any:
    """The values in another type, as far as it holds them."""
    return t.to(rng.choice(DTYPES))


def layout(rng: random.Random, t: torch.Tensor) -> Any:
    """The same values at other addresses: strided, transposed, not aligned."""
    how = rng.randrange(4)
    if how == 0 and t.ndim >= 2:
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == 1 and t.ndim >= 2:
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if how == 2 and t.ndim:
        wide = t.new_empty(*t.shape[:-1], 2 * t.shape[-1])[..., ::2]
        return wide.copy_(t)
    flat = t.new_empty(t.numel() + 1)[1:]
    return flat.copy_(t.reshape(-1)).view(t.shape)


def overlapping(rng: random.Random, t: torch.Tensor) -> Any:
    """Views in which elements share an address."""
    if not t.ndim or not t.numel():
        return t
    axis = _axis(rng, t)
    if rng.random() < 0.5:
        return t.narrow(axis, 0, 1).expand(t.shape)
    strides = [min(s, 1) if i == axis else s for i, s in enumerate(t.contiguous().stride())]
    return t.contiguous().as_strided(t.shape, strides)


def not_dense(rng: random.Random, t: torch.Tensor) -> Any:
    """Sparse, nested, meta, quantised, numpy, lists, text: not a plain tensor of this device."""
    how = rng.randrange(9)
    if how == 0:
        return t.to("meta")
    if how == 1:
        return t.float().to_sparse()
    if how in (2, 5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # both kinds are prototypes or deprecated; users still have them
            if how == 2:
                return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
            return torch.quantize_per_tensor(torch.zeros(tuple(t.shape)), 0.1, 0, torch.qint8)
    if how == 3:
        return t.float().numpy() if not t.dtype.is_complex else np.zeros(3)
    if how == 4:
        return t.float().tolist()
    if how == 6 and t.numel():
        return torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(3, 3)], layout=torch.jagged)
    return rng.choice([None, "tensor", 3, 1.5, True, b"", {}, torch.float32, object(), type])


def grad(rng: random.Random, t: torch.Tensor) -> Any:
    """A tensor that records gradients, or a parameter."""
    if not t.is_floating_point() or t.dtype.itemsize == 1:
        return t
    return t.clone().requires_grad_() if rng.random() < 0.5 else torch.nn.Parameter(t.clone())


def values(rng: random.Random, t: torch.Tensor) -> Any:
    """Extreme values at some places."""
    changed = t.clone().contiguous()
    flat = changed.view(-1)
    for _ in range(min(3, flat.numel())):
        at = rng.randrange(flat.numel())
        if t.dtype.is_floating_point:
            flat[at] = torch.tensor(rng.choice(ODD_FLOATS)).to(t.dtype)
        elif t.dtype is torch.bool:
            flat[at] = not bool(flat[at])
        elif not t.dtype.is_complex:
            info = torch.iinfo(t.dtype)
            flat[at] = min(max(rng.choice(ODD_INTS), info.min), info.max)
    return changed


def duplicates(rng: random.Random, t: torch.Tensor) -> Any:
    """Every element the same."""
    return t.reshape(-1)[:1].expand(t.numel()).reshape(t.shape).clone() if t.numel() else t


TENSOR: tuple[Damage, ...] = (
    wrong_rank, wrong_size, huge, other_dtype, layout, overlapping, not_dense, grad, values, values, duplicates,
)
PLAIN: dict[str, tuple[Any, ...]] = {
    "int": (*ODD_INTS, 2**70, -(2**70), 1.5, True, "3", None, [1], np.int64(3), torch.tensor(3), 3, 64, 65),
    "float": (*ODD_FLOATS, 1e308, -1e308, -1.0, 1, 2**70, 10**400, "1", None, True, np.float32(1), torch.tensor(1.0)),
    "bool": (0, 1, None, "yes", True, False, torch.tensor(True), np.bool_(True)),
    "str": ("", "nonsense", None, 3, b"bf16", "BF16", "f32", "bf16", "1x128", "a\0b", "\ud800", ["bf16"], "ü" * 999),
    "int[]": (
        None, 3, "ab", (), (1,), (0, 0), (-1, 128), (2**40, 2**40), (2**70, 1), (True, 1), (1.0, 1), (1, 2, 3),
        [1, 128], (1, 32), (1, 128), (3, 5), (2**62, 2**62), ("1", "2"), (None, None),
    ),
    "ScalarType": (None, "float32", 5, torch.float, *DTYPES),
}


def spoil(rng: random.Random, param: Param, value: Any) -> Any:
    """Another value for `param`."""
    if param.kind.is_tensor:
        if isinstance(value, torch.Tensor):
            return rng.choice(TENSOR)(rng, value)
        made = torch.randn([rng.choice([0, 1, 2, 3, 8]) for _ in range(rng.randrange(4))])
        return made.to(rng.choice(DTYPES)) if rng.random() < 0.7 else not_dense(rng, made)
    return rng.choice(PLAIN[param.kind.value.rstrip("?")])


def spoil_out(rng: random.Random, outs: tuple[torch.Tensor, ...], inputs: list[torch.Tensor]) -> Any:
    """A bad, or an unusual, `out` in place of `outs`."""
    how = rng.randrange(6)
    if how == 0:
        return rng.choice([list(outs), outs[:-1], (*outs, outs[0]), outs[0], (None, *outs[1:]), (), "out", 3])
    at = rng.randrange(len(outs))
    if how == 1:
        changed = rng.choice((wrong_rank, wrong_size, other_dtype, not_dense, huge, grad))(rng, outs[at])
    elif how == 2:
        changed = overlapping(rng, outs[at])
    elif how == 3:
        changed = layout(rng, outs[at])
    else:
        changed = _over(rng, outs[at], rng.choice(inputs))
    return tuple(changed if i == at else t for i, t in enumerate(outs))


def _over(rng: random.Random, wanted: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """A tensor of `wanted`'s shape and type inside the memory of `base`, when that is large enough."""
    store = base.untyped_storage()
    spare = store.nbytes() // wanted.element_size() - wanted.numel()
    if spare < 0:
        return wanted
    view = torch.empty(0, dtype=wanted.dtype)
    strides = torch.empty(tuple(wanted.shape), device="meta").stride()
    return view.set_(store, rng.choice([0, spare]), tuple(wanted.shape), strides)

