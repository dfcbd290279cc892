"""The Triton kernels through the PTX simulator: results against the references, and quotients against true division.

One ordinary and one edge case of each op; the conformance suite on `cuda_sm90/sim` runs them all.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinfer_cuda import simdevice
from deepinfer_triton import kernels

import deepinfer
from deepinfer.conformance.compare import close
from deepinfer.hal import Device
from deepinfer.ops import quant
from deepinfer.registry import Case, Op, get_spec, pin

pytest.importorskip("triton", reason="the compiler is an optional dependency")
pytestmark = pytest.mark.skipif(not simdevice.probe().available, reason="the PTX simulator is not built")
NAMES = [(str(kernel.op), str(kernel.name)) for kernel in kernels()]


@pytest.fixture(params=["cuda_sm90/sim", "cuda_sm10/sim"])
def device(request: pytest.FixtureRequest) -> Device:
    return deepinfer.device(request.param)


def chosen(op: str) -> list[Case]:
    quick = [case for case in get_spec(op).cases() if "quick" in case.tags]
    edges = [case for case in quick if "edge" in case.tags and "0x" not in case.id]
    return [quick[len(quick) // 2], *edges[-1:]]


def problems(op: str, case: Case) -> list[str]:
    spec, args = get_spec(op), case.build()
    before: dict[str, Any] = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in args.items()}
    results = Op(spec)(*[args[param.name] for param in spec.params])
    found = []
    pairs = zip(spec.returns, results, spec.reference(before), spec.valid(before), strict=True)
    for name, got, want, mask in pairs:
        found += close(name, got, want, spec.tolerance(before, name), mask)
    for param in spec.params:
        if param.mutated:
            found += close(param.name, args[param.name], before[param.name], spec.tolerance(before, param.name))
    return found


@pytest.mark.parametrize(("op", "kernel"), NAMES)
def test_results_match_the_reference(device: Device, op: str, kernel: str) -> None:
    with deepinfer.use_backend(device), pin(device, op, kernel):
        for case in chosen(op):
            assert not problems(op, case), f"{case.id}, seed {case.seed}"


def test_quantised_bytes_equal_true_division_at_every_scale() -> None:
    """Blocks whose largest value walks through the whole float32 range, so that scales do, subnormals included."""
    generator = torch.Generator().manual_seed(3)
    device = deepinfer.device("cuda_sm90/sim")
    exponent = torch.arange(-148, 128, 4)[:, None].double()
    x = ((torch.rand(len(exponent), 128, generator=generator).double() * 2 - 1) * 2.0**exponent).float()
    x[:, 0] = (2.0**exponent[:, 0] * 1.1).float()
    with deepinfer.use_backend("cpu"):
        want = quant.quantize_fp8(x, amax_floor=0.0)
    with deepinfer.use_backend(device), pin(device, "quant.quantize_fp8", "triton_quantize_fp8"):
        got = quant.quantize_fp8(x, amax_floor=0.0)
    assert torch.equal(got.scale, want.scale), "seed 3"
    assert torch.equal(got.data.view(torch.uint8), want.data.view(torch.uint8)), "seed 3"


def layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same values with strides that allow vectors and with such that do not."""
    wide = torch.zeros(*x.shape[:-1], x.shape[-1] + 16, dtype=x.dtype)[..., : x.shape[-1]].copy_(x)
    odd = torch.zeros(*x.shape[:-1], x.shape[-1] + 1, dtype=x.dtype)[..., : x.shape[-1]].copy_(x)
    second = torch.zeros(*x.shape[:-1], x.shape[-1] * 2, dtype=x.dtype)[..., ::2].copy_(x)
    turned = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    return {"contiguous": x, "wide": wide, "odd": odd, "second": second, "turned": turned}


@pytest.mark.parametrize("shape", [(3, 5, 160), (2, 4, 128), (9, 96)])
def test_bytes_do_not_depend_on_the_layout(shape: tuple[int, ...]) -> None:
    """Whole and ragged blocks, one and several matrices; the forms for wide accesses and the general one."""
    generator, device = torch.Generator().manual_seed(5), deepinfer.device("cuda_sm90/sim")
    x = torch.randn(shape, generator=generator).bfloat16()

    def made(value: torch.Tensor) -> list[torch.Tensor]:
        parts: list[torch.Tensor] = []
        for block in ((1, 32), (4, 32), (1, 64)):
            for kind in ("f32", "ue8m0"):
                coded = quant.quantize_fp8(value, block=block, scale_dtype=kind)
                parts += [coded.data.view(torch.uint8), coded.scale, quant.dequantize(coded)]
        packed = quant.quantize_mxfp4(value, block=(1, 32))
        return [*parts, packed.data, packed.scale, quant.dequantize(packed)]

    with deepinfer.use_backend("cpu"):
        want = made(x)
    for name, value in layouts(x).items():
        with deepinfer.use_backend(device), deepinfer.fallback("error"):
            got = made(value)
        for number, (one, other) in enumerate(zip(got, want, strict=True)):
            assert torch.equal(one, other), f"{name}, result {number}, seed 5"
