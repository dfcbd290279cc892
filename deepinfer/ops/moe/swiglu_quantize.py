"""Contract of `moe.swiglu_quantize`: the activation between the two products of an expert, as an op of its own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument, invalid
from deepinfer.ops import checks
from deepinfer.ops.deep_gmm.swiglu import activate
from deepinfer.ops.quant.blocks import grid, quantize_fp8_blocks
from deepinfer.registry import EXACT, Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors

DTYPES = (torch.bfloat16, torch.float32, torch.float16)
# quantize -> (block, UE8M0 scales)
FORMS: dict[str, tuple[tuple[int, int], bool]] = {"fp8_1x128": ((1, 128), False), "mxfp8": ((1, 32), True)}
PLAIN_TOLERANCES = {
    torch.float32: Tolerance(1e-6, 1e-5, 1e-10),
    torch.bfloat16: Tolerance(1e-6, 2.0**-7, 1e-5),
    torch.float16: Tolerance(1e-6, 2.0**-10, 1e-6),
}
# An activation beside a rounding boundary of e4m3 may fall to either side: one step, 1/8 or the smallest subnormal.
PAYLOAD = Tolerance(2.0**-9 * 1.001, 0.126, 1e-5)


@register
class SwigluQuantize(OpSpec):
    """a = silu(min(gate, limit)) * clamp(up, -limit, limit) * route_weights[m], optionally quantised.

    gate_up [M, 2I] bf16 | f16 | f32: gate = columns [0, I), up = [I, 2I); all arithmetic in float32. quantize = "":
    data [M, I] in gate_up's dtype, scale [M, 0] float32. "fp8_1x128": e4m3 data with float32 scales [M, ceil(I/128)];
    "mxfp8": e4m3 data with UE8M0 scales [M, ceil(I/32)], both by the rules of `quant.quantize_fp8` applied to the
    float32 activation, the route weight included. No limit: no clamp. A NaN spoils its own block only.
    """

    name = "moe.swiglu_quantize"
    params = (
        Param("gate_up"), Param("route_weights", Kind.OPT_TENSOR), Param("limit", Kind.OPT_FLOAT),
        Param("quantize", Kind.STR),
    )
    returns = ("data", "scale")
    host_batch_invariant = True

    def check(self, call: Call) -> None:
        gate_up, weights, limit = call["gate_up"], call["route_weights"], call["limit"]
        checks.rank(self.name, "gate_up", gate_up, 2, "[M,2I]")
        checks.dtype(self.name, "gate_up", gate_up, DTYPES)
        if gate_up.shape[1] % 2:
            raise invalid(f"{self.name}: gate_up.shape[1]", gate_up.shape[1], "must be even (gate, then up)")
        if weights is not None:
            checks.dtype(self.name, "route_weights", weights, (torch.float32,))
            checks.shape(self.name, "route_weights", weights, (gate_up.shape[0],), "[M]")
        if limit is not None and not limit > 0:
            raise invalid(f"{self.name}: limit", limit, "must be positive or None", nearest="None")
        if call["quantize"] not in ("", *FORMS):
            raise invalid(f"{self.name}: quantize", call["quantize"], f"must be None or one of {tuple(FORMS)}")

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        rows, width = call["gate_up"].shape
        shape, device = (rows, width // 2), call["gate_up"].device
        if not call["quantize"]:
            plain = TensorMeta.dense(shape, call["gate_up"].dtype, device)
            return plain, TensorMeta.dense((rows, 0), torch.float32, device)
        block, ue8m0 = FORMS[call["quantize"]]
        scales = TensorMeta.dense(grid(shape, block), torch.uint8 if ue8m0 else torch.float32, device)
        return TensorMeta.dense(shape, torch.float8_e4m3fn, device), scales

    def reference(self, args: Args) -> Tensors:
        gate, up = args["gate_up"].double().chunk(2, 1)
        limit, weights = args["limit"], args["route_weights"]
        if limit is not None:
            gate, up = torch.where(gate > limit, limit, gate), torch.where(up.abs() > limit, up.sign() * limit, up)
        made = gate / (1 + (-gate).exp()) * up
        made = made if weights is None else made * weights.double()[:, None]
        return self._finish(args, made)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        found = self._finish(args, activate(args["gate_up"].float(), args["limit"], args["route_weights"]))
        found = (found[0] if args["quantize"] else found[0].to(args["gate_up"].dtype), found[1])
        return tuple(new if old is None else old.copy_(new) for new, old in zip(found, out, strict=True))

    def _finish(self, args: Args, made: torch.Tensor) -> Tensors:
        if not args["quantize"]:
            return made, torch.empty((made.shape[0], 0), dtype=torch.float32)
        block, ue8m0 = FORMS[args["quantize"]]
        return quantize_fp8_blocks(made, block, ue8m0)

    def cost(self, call: Call) -> Cost:
        gate_up = call["gate_up"]
        written = sum(meta.nbytes for meta in self.outputs(call))
        return Cost(flops=5.0 * gate_up.numel, nbytes=float(gate_up.nbytes + written))

    def cases(self) -> Iterable[Case]:
        shapes = [(1, 2), (3, 256), (5, 254), (4, 768), (0, 256), (3, 0), (17, 4608)]
        for number, (rows, width) in enumerate(shapes):
            for quantize in ("", *FORMS):
                for limit in (None, 1.5):
                    dtype = DTYPES[(number + (limit is None)) % 3]
                    params = {
                        "M": rows, "I": width // 2, "quantize": quantize or None, "limit": limit,
                        "weights": limit is not None, "dtype": str(dtype).removeprefix("torch."),
                    }
                    tags = frozenset({"quick", "edge"} if 0 in (rows, width) else {"quick"})
                    yield Case(self.name, params, partial(_make, params, "randn"), tags)
        for data in ("nan", "huge", "zero", "strided"):
            for quantize in ("", *FORMS):
                params = {
                    "M": 4, "I": 160, "quantize": quantize or None, "limit": None, "weights": True, "dtype": "float32",
                }
                make = partial(_make, params, data)
                yield Case(self.name, {"data": data, **params}, make, frozenset({"quick", "edge"}))
        params = {"M": 8192, "I": 2304, "quantize": "mxfp8", "limit": 10.0, "weights": True, "dtype": "bfloat16"}
        yield Case(self.name, params, partial(_make, params, "randn"), frozenset({"bench"}))

    def error_cases(self) -> Iterable[ErrorCase]:
        spoiled: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
            "odd": ({"gate_up": torch.zeros(4, 3)}, ("gate_up", "3")),
            "rank": ({"gate_up": torch.zeros(4)}, ("gate_up", "2 dimensions")),
            "weights-size": ({"route_weights": torch.zeros(5)}, ("route_weights", "4")),
            "weights-dtype": ({"route_weights": torch.zeros(4).half()}, ("route_weights", "float16")),
            "limit": ({"limit": 0.0}, ("limit", "0.0")),
            "quantize": ({"quantize": "int8"}, ("quantize", "int8", "mxfp8")),
        }
        for name, (change, mentions) in spoiled.items():
            yield ErrorCase(self.name, name, partial(_spoil, change), InvalidArgument, mentions)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        if not args["quantize"]:
            return PLAIN_TOLERANCES[args["gate_up"].dtype]
        if output == "data":
            return PAYLOAD
        return EXACT if args["quantize"] == "mxfp8" else Tolerance(1e-12, 1e-5, 1e-10)

    def batch_variants(self, args: Args) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
        if args["gate_up"].shape[0] < 2:
            return []
        part, weights = slice(1, None), args["route_weights"]
        sub = {"gate_up": args["gate_up"][part], "route_weights": None if weights is None else weights[part]}
        return [({**args, **sub}, (part, part))]


def _make(params: dict[str, Any], data: str, generator: torch.Generator) -> dict[str, Any]:
    rows, width = params["M"], 2 * params["I"]
    gate_up = torch.randn((rows, width), generator=generator) * 2
    if data == "nan":
        gate_up[1, 5] = torch.nan
    elif data == "huge":
        gate_up *= 1e5
    elif data == "zero":
        gate_up[:, : width // 2] = 0.0
    elif data == "strided":
        gate_up = torch.cat((gate_up, gate_up), 1)[:, :width]
    weights = torch.rand(rows, generator=generator) if params["weights"] else None
    return {
        "gate_up": gate_up.to(getattr(torch, params["dtype"])), "route_weights": weights, "limit": params["limit"],
        "quantize": params["quantize"] or "",
    }


def _spoil(change: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    params = {"M": 4, "I": 8, "quantize": None, "limit": None, "weights": True, "dtype": "float32"}
    return {**_make(params, "randn", generator), **change}
