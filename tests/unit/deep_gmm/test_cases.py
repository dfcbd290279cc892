"""Every quick case of the family through the portable tier and the CPU kernels, against the float64 references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinfer_cpu import matmul

import deepinfer
from deepinfer.conformance.compare import close
from deepinfer.errors import UnsupportedError
from deepinfer.hal.current import current_device
from deepinfer.ops import Quantized, deep_gmm
from deepinfer.ops.deep_gmm.operand import Recipe
from deepinfer.registry import Op, get_spec, pin
from deepinfer.registry.kernels import candidates

OPS = (
    "deep_gmm.gemm", "deep_gmm.grouped_gemm", "deep_gmm.masked_grouped_gemm", "deep_gmm.grouped_swiglu_mlp",
    "deep_gmm.group_rows",
)


# Kernels that run prepacked calls too. The other products of the cpu backend differ from them in the layout alone.
PACKED = (
    "cpu_gemm_f16_weights", "cpu_grouped_gemm_f16_weights", "cpu_masked_gemm_f16_weights", "cpu_swiglu_mlp_f32",
)


@pytest.mark.parametrize("name", OPS)
def test_every_kernel_agrees_with_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, problems, count, ran = get_spec(name), [], 0, set()
    monkeypatch.setattr(matmul, "has_bf16_products", lambda: True)
    op = Op(spec)
    with deepinfer.use_backend("cpu"):
        device = current_device()
        for case in spec.cases():
            if "quick" not in case.tags:
                continue
            args, count = case.build(), count + 1
            reference, valid = spec.reference(args), spec.valid(args)
            for candidate in candidates(device, name):
                for form in (args, _packed(args)) if candidate.name in PACKED else (args,):
                    with pin(device, name, candidate.name):
                        try:
                            got = op(*(form[param.name] for param in spec.params))
                        except UnsupportedError:  # the kernel takes other calls; the tier below always takes this one
                            continue
                    ran.add(candidate.name)
                    for output, value, want, mask in zip(spec.returns, got, reference, valid, strict=True):
                        found = close(output, value, want, spec.tolerance(args, output), mask)
                        problems += [f"{candidate.name} {case.id} seed {case.seed}: {text}" for text in found]
    assert not problems, "\n".join(problems[:10])
    assert count >= 100
    with deepinfer.use_backend("cpu"):
        assert ran == {candidate.name for candidate in candidates(current_device(), name)}


def _packed(args: dict[str, Any]) -> dict[str, Any]:
    """The call with prepacked weights."""
    found = dict(args)
    for name in {"b", "w13", "w2"} & args.keys():
        data, scale = args[name], args[f"{name}_scale"]
        form = Recipe.parse(args[f"{name}_recipe"])
        if scale is not None:
            data = Quantized(data, scale, form.block, form.scale_dtype, form.element)
        made = deep_gmm.prepack(data)
        found |= {f"{name}_packed": made.packed, f"{name}_layout": made.layout}
    return found


def test_ids_are_unique_and_bench_cases_name_their_sizes() -> None:
    for name in OPS:
        cases = list(get_spec(name).cases())
        assert len({case.id for case in cases}) == len(cases), name
        for case in cases:
            if "bench" in case.tags and name != "deep_gmm.group_rows":
                assert {"M", "K", "dtype"} <= set(case.params), case.id


def test_h200_shapes_are_there() -> None:
    grouped = {(c.params["groups"], c.params["M"], c.params["N"], c.params["K"], c.params["dtype"])
               for c in get_spec("deep_gmm.grouped_gemm").cases() if "bench" in c.tags}
    assert {(4, 32768, 4096, 7168, "fp8"), (8, 32768, 7168, 2048, "bf16")} <= grouped


def _broken(args: dict, kind: str) -> torch.Tensor:
    """The product of a kernel with a typical bug."""
    from deepinfer.ops.deep_gmm.operand import widen

    a, b = widen(args["a"], args["a_scale"], args["a_recipe"]), widen(args["b"], args["b_scale"], args["b_recipe"])
    if kind == "last column dropped":
        return (a[:, :-1] @ b[:, :-1].t()).to(args["out_dtype"])
    if kind == "bf16 sum":
        total = torch.zeros(a.shape[0], b.shape[0], dtype=torch.bfloat16)
        for k in range(0, a.shape[1], 16):
            total += (a[:, k : k + 16] @ b[:, k : k + 16].t()).bfloat16()
        return total.to(args["out_dtype"])
    if kind == "row swapped":
        return (a.flip(0) @ b.t()).to(args["out_dtype"])
    scale = args["b_scale"].clone()
    scale[0, -1] *= 1.1
    return (a @ widen(args["b"], scale, args["b_recipe"]).t()).to(args["out_dtype"])


@pytest.mark.parametrize(
    ("kind", "pair"),
    [("last column dropped", "bf16"), ("last column dropped", "fp8"), ("bf16 sum", "bf16"), ("bf16 sum", "fp8"),
     ("row swapped", "f32"), ("last block's scale off", "fp8")],
)
def test_the_tolerance_catches_broken_kernels(kind: str, pair: str) -> None:
    spec = get_spec("deep_gmm.gemm")
    case = next(c for c in spec.cases() if c.id == f"M=130,N=130,K=130,dtype={pair}")
    args = case.build()
    (want,) = spec.reference(args)
    assert close("d", _broken(args, kind), want, spec.tolerance(args, "d"), None), f"{kind} passes"


def test_dense_sub_batches_are_rows_of_the_whole() -> None:
    """The first row and the second half, as inputs and as indices into the result."""
    spec = get_spec("deep_gmm.gemm")
    case = next(c for c in spec.cases() if c.build()["a"].shape[0] > 3)
    args = case.build()
    variants = spec.batch_variants(args)
    assert len(variants) == 2
    for sub, (pick,) in variants:
        assert torch.equal(sub["a"].float(), args["a"][pick].float())
