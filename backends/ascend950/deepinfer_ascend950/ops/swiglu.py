"""The expert MLP as its composition: grouped product, activation and rounding on the vector cores, grouped product.

Invariants: both products are the kernels of `ops.gemm`, chosen here once per plan; intermediate rows of no group hold
whatever the activation makes of undefined memory and are read by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from deepinfer.errors import UnsupportedError
from deepinfer.hal import Device, DeviceProps, Stream, Support
from deepinfer.hal.types import YES
from deepinfer.ops.deep_gmm.operand import Recipe, natural_dtype
from deepinfer.ops.deep_gmm.swiglu import QUANTIZE
from deepinfer.registry import Call, Kernel, Plan, TensorMeta
from deepinfer_ascend950.ops.base import AscendKernel, Loaded, arguments, read, write
from deepinfer_ascend950.ops.gemm import GROUPED, GROUPED_KERNELS, TYPES

FORMS = {"": 0, "fp8_1x128": 1, "mxfp8": 2}


def product(call: Call, a: tuple[TensorMeta, TensorMeta | None, str], b: str, out_dtype: torch.dtype) -> Call:
    """The grouped product of `a` (payload, scales, recipe) with weights `b` of an MLP call."""
    args = {
        "a": a[0],
        "a_scale": a[1],
        "a_recipe": a[2],
        "b": call[b],
        "b_scale": call[f"{b}_scale"],
        "b_recipe": call[f"{b}_recipe"],
        "b_packed": call[f"{b}_packed"],
        "b_layout": call[f"{b}_layout"],
        "counts": call["counts"],
        "starts": call["starts"],
        "out_dtype": out_dtype,
    }
    return Call(GROUPED, args, call.device)


@dataclass(frozen=True)
class Shapes:
    """The two products of an MLP call and what lies between them."""

    first: Call
    second: Call
    hidden: TensorMeta
    act: TensorMeta
    scale: TensorMeta | None

    @staticmethod
    def of(call: Call) -> Shapes:
        x, rows, width = call["x"], call["x"].shape[0], call["w13"].shape[1] // 2
        middle, recipe = natural_dtype(x.dtype, call["x_recipe"]), QUANTIZE[call["quantize"]]
        form = Recipe.parse(recipe)
        hidden = TensorMeta.dense((rows, 2 * width), middle, call.device)
        act = TensorMeta.dense((rows, width), torch.float8_e4m3fn if form.element else middle, call.device)
        scale = None
        if form.element:
            kind = torch.uint8 if form.scale_dtype == "ue8m0" else torch.float32
            scale = TensorMeta.dense((rows, -(-width // form.block[1])), kind, call.device)
        second = product(call, (act, scale, recipe), "w2", call["out_dtype"])
        if call.out is not None:
            second = replace(second, out=call.out)
        return Shapes(product(call, (x, call["x_scale"], call["x_recipe"]), "w13", middle), second, hidden, act, scale)


def choose(props: DeviceProps, call: Call) -> tuple[Kernel | None, list[str]]:
    """The first product kernel that takes `call`, or every reason why none does."""
    reasons: list[str] = []
    for kernel in GROUPED_KERNELS:
        support = kernel.supports(props, call)
        if support:
            return kernel, []
        reasons += (f"{kernel.name}: {reason}" for reason in support.reasons)
    return None, reasons


def renamed(reasons: list[str], which: str, names: dict[str, str]) -> list[str]:
    """Reasons of a product as those of the MLP: they name its own arguments."""
    for short, name in names.items():
        reasons = [reason.replace(f": {short}: ", f": {name}: ") for reason in reasons]
    return [f"{which} product: {reason}" for reason in reasons]


@dataclass(frozen=True)
class Step:
    """A product kernel with its plan and where its workspace lies."""

    kernel: Kernel
    plan: Plan
    at: int

    def run(self, stream: Stream, args: tuple[Any, ...], out: torch.Tensor, workspace: torch.Tensor) -> None:
        own = workspace[self.at : self.at + self.plan.workspace] if self.plan.workspace else None
        self.kernel.run(self.plan, stream, args, (out,), own)


@dataclass(frozen=True)
class State:
    """Everything `run` needs: both products, the activation kernel, and the places of intermediate rows."""

    first: Step
    second: Step
    act: Loaded
    shapes: Shapes
    places: tuple[int, int, int]


def placed(meta: TensorMeta, at: int, workspace: torch.Tensor) -> torch.Tensor:
    """A tensor like `meta` at byte `at` of the workspace."""
    return workspace[at : at + meta.nbytes].view(meta.dtype).view(meta.shape)


class SwigluMlp(AscendKernel):
    """`deep_gmm.grouped_swiglu_mlp` in three launches (five when scales must be rewritten)."""

    op = "deep_gmm.grouped_swiglu_mlp"
    name = "ascend950_swiglu_mlp"
    source = "swiglu"
    sources = (
        "kernels/swiglu.asc",
        "kernels/gemm_plain.asc",
        "kernels/gemm_mx.asc",
        "kernels/gemm_vec.asc",
        "kernels/gemm_mx.h",
        "kernels/gemm_cube.h",
        "kernels/gemm_tile.h",
        "kernels/deepinfer.h",
    )
    batch_invariant = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        shapes = Shapes.of(call)
        reasons = renamed(choose(props, shapes.first)[1], "first", {"a": "x", "b": "w13"})
        reasons += renamed(choose(props, shapes.second)[1], "second", {"a": "activation", "b": "w2"})
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        shapes, steps, at = Shapes.of(call), [], 0
        places = []
        for meta in (shapes.hidden, shapes.act, shapes.scale):
            places.append(at)
            at += 0 if meta is None else -(-meta.nbytes // 256) * 256
        for part in (shapes.first, shapes.second):
            kernel, reasons = choose(device.props, part)
            if kernel is None:
                raise UnsupportedError(f"{self.name} was planned for a call it does not take", reasons)
            plan = kernel.plan(device, part)
            steps.append(Step(kernel, plan, at))
            at += -(-plan.workspace // 256) * 256
        first, second, third = places
        return Plan(
            max(at, 256), State(steps[0], steps[1], self.load(device, "swiglu"), shapes, (first, second, third))
        )

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        y, state = out[0], plan.state
        if y.numel() == 0:
            return
        counts, starts, route, limit, quantize, dtype = args[13:]
        shapes = state.shapes
        h = placed(shapes.hidden, state.places[0], workspace)
        act = placed(shapes.act, state.places[1], workspace)
        scale = None if shapes.scale is None else placed(shapes.scale, state.places[2], workspace)
        if h.numel():
            state.first.run(stream, (*args[:8], counts, starts, h.dtype), h, workspace)
            self.activate(state.act, stream, h, act, scale, route, limit, quantize)
        second = (act, scale, QUANTIZE[quantize], *args[8:13], counts, starts, dtype)
        state.second.run(stream, second, y, workspace)

    def activate(
        self,
        state: Loaded,
        stream: Stream,
        h: torch.Tensor,
        act: torch.Tensor,
        scale: torch.Tensor | None,
        route: torch.Tensor | None,
        limit: float | None,
        quantize: str,
    ) -> None:
        """Launch the kernel between the products."""
        tail = (
            h.stride(0) * h.element_size(),
            route.stride(0) * route.element_size() if route is not None else 0,
            act.stride(0) * act.element_size(),
            scale.stride(0) * scale.element_size() if scale is not None else 0,
            h.shape[0],
            act.shape[1],
            TYPES[h.dtype],
            TYPES[route.dtype] if route is not None else 0,
            FORMS[quantize],
            limit is not None,
            limit or 0.0,
            0,
        )
        pointers = [read(h), read(route), write(act), write(scale)]
        state.launch(stream, h.shape[0], arguments(pointers, "4q6ifi", tail))


KERNELS = (SwigluMlp(),)
