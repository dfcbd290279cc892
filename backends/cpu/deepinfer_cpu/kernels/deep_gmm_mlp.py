"""The expert MLP and row grouping on a CPU: few torch calls for a decode step, a loop over experts for a prompt.

Decode step, 16 rows over 8 experts: gather rows -> bmm (gate, up) -> activation -> bmm (down) -> put back: about 12
calls in all, where a loop over experts makes 5 per expert.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from deepinfer.hal.device import Stream
from deepinfer.hal.types import DeviceProps, Support
from deepinfer.ops.deep_gmm.group_rows import capacity
from deepinfer.ops.deep_gmm.operand import PLAIN, natural_dtype, widen
from deepinfer.ops.deep_gmm.rows import host_bounds
from deepinfer.ops.deep_gmm.swiglu import QUANTIZE, activate, quantize
from deepinfer.registry.call import Call
from deepinfer.registry.kernel import Kernel, Plan
from deepinfer_cpu import halves, matmul
from deepinfer_cpu.kernels.deep_gmm import Out, takes_layouts
from deepinfer_cpu.matmul import LAYOUT, Padded, Weights, pays_to_pad
from deepinfer_cpu.product import products


class CpuSwigluMlp(Kernel):
    """Both products in float32 with the op's roundings between them."""

    op = "deep_gmm.grouped_swiglu_mlp"
    name = "cpu_swiglu_mlp_f32"
    allocates = True
    batch_invariant = True
    sources = ("kernels/deep_gmm_mlp.py", "matmul.py", "halves.py", "product.py")

    def supports(self, props: DeviceProps, call: Call) -> Support:
        return takes_layouts(call, (LAYOUT, halves.LAYOUT), "w13", "w2")

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        x, x_scale, x_recipe = args[:3]
        counts, starts, route, limit, how, dtype = args[13:]
        middle, total, groups = natural_dtype(x.dtype, x_recipe), x.shape[0], counts.shape[0]
        spans = host_bounds(counts, starts, total)
        first, second = (Weights(*given).widened(len(spans)) for given in (args[3:8], args[8:13]))
        w13, w2 = first.dense(), second.dense()
        route = None if route is None else route.float()
        if w13 is not None and w2 is not None and pays_to_pad(spans, groups):
            pad = Padded(spans, groups)
            h = products(pad.spread(widen(x, x_scale, x_recipe)), w13.transpose(1, 2))
            scales = None if route is None else route.index_select(0, pad.gather).view(pad.shape)
            act = between(h, middle, limit, scales, how)
            return (pad.collect(products(act, w2.transpose(1, 2)), total, out[0], dtype),)
        h = matmul.products(x, x_scale, x_recipe, first, spans, None, torch.float32)
        act = between(h, middle, limit, route, how)
        return (matmul.products(act, None, PLAIN, second, spans, out[0], dtype),)


def between(
    h: torch.Tensor, middle: torch.dtype, limit: float | None, route: torch.Tensor | None, how: str
) -> torch.Tensor:
    """Float32 values that enter the second product: h rounded, activated, rounded or quantised."""
    if middle is not torch.float32:
        h = h.to(middle).float()
    act = activate(h, limit, route)
    if how:
        flat = act.flatten(0, -2)
        return widen(*quantize(flat, QUANTIZE[how]), QUANTIZE[how]).view(act.shape)
    return act if middle is torch.float32 else act.to(middle).float()


class CpuGroupRows(Kernel):
    """Row grouping by numpy: a counting sort in a handful of calls that cost a fifth of torch's."""

    op = "deep_gmm.group_rows"
    name = "cpu_group_rows"
    allocates = True

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        ids, groups, align = args
        key = ids.numpy()
        key = np.where((key >= 0) & (key < groups), key, groups)
        order = key.argsort(kind="stable")
        counts = np.bincount(key, minlength=groups + 1)
        packed = counts.cumsum() - counts
        owned = len(order) - int(counts[groups])
        if align == 1:
            starts, permutation = packed, order
            permutation[owned:] = -1
        else:
            room = -(-counts // align) * align
            starts = room.cumsum() - room
            permutation = np.full(capacity(len(order), groups, align), -1, dtype=np.int64)
            permutation[np.arange(owned) + np.repeat(starts - packed, counts)[:owned]] = order[:owned]
        tables = (permutation, starts[:groups].astype(np.int32), counts[:groups].astype(np.int32))
        found = tuple(torch.from_numpy(table) for table in tables)
        return tuple(made if given is None else given.copy_(made) for given, made in zip(out, found, strict=True))


KERNELS: list[Kernel] = [CpuSwigluMlp(), CpuGroupRows()]
