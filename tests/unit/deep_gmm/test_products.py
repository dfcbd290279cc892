"""Products through the public API: published accuracy, prepacked weights, determinism, errors, the expert MLP."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from deepinfer_cpu import halves
from hypothesis import given, settings
from hypothesis import strategies as st

import deepinfer
from deepinfer.errors import InvalidArgument
from deepinfer.hal.current import current_device
from deepinfer.ops import Quantized, deep_gmm, quant
from deepinfer.ops.deep_gmm import Packed, data
from deepinfer.ops.deep_gmm.operand import Recipe
from deepinfer.registry import Op, get_spec
from deepinfer.registry.dispatch import make_call
from deepinfer.registry.kernels import candidates


@pytest.fixture(autouse=True)
def _on_cpu():
    with deepinfer.use_backend("cpu"):
        yield


def _difference(x: torch.Tensor, y: np.ndarray) -> float:
    got, want = x.double().numpy(), y.astype(np.float64)
    size = (got**2 + want**2).sum()
    return 0.0 if size == 0 else float(1 - 2 * (got * want).sum() / size)


def _operand(x: torch.Tensor, recipe: str, dtype: torch.dtype) -> torch.Tensor | Quantized:
    payload, scale = data.encode(x, recipe, dtype)
    if scale is None:
        return payload
    form = Recipe.parse(recipe)
    return Quantized(payload, scale, form.block, form.scale_dtype, form.element)


@pytest.mark.parametrize(
    ("pair", "bound"),
    [("f32", 1e-10), ("bf16", 1e-5), ("f16", 1e-5), ("fp8", 1e-3), ("fp8_rows", 1e-3), ("mxfp8", 2e-3),
     ("mxfp8_rows", 2e-3), ("fp8_fp4", 1e-2)],
)
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_close_to_the_product_of_unquantised_inputs(pair: str, bound: float, out_dtype: torch.dtype | None) -> None:
    """The published bounds (fp8 1e-3, one side fp4 1e-2); power-of-two scales per 32 on both sides: 2e-3."""
    dtype, a_recipe, b_recipe = data.PAIRS[pair]
    g = torch.Generator().manual_seed(11)
    a, b = torch.randn(96, 576, generator=g).to(dtype), torch.randn(72, 576, generator=g).to(dtype)
    want = a.double().numpy() @ b.double().numpy().T
    got = deep_gmm.gemm(_operand(a.float(), a_recipe, dtype), _operand(b.float(), b_recipe, dtype), out_dtype=out_dtype)
    assert got.dtype == (out_dtype or dtype)
    assert _difference(got, want) < bound


@pytest.mark.parametrize("pair", list(data.PAIRS))
@pytest.mark.parametrize("counts", [[3, 1, 2], [40, 0, 60], [0, 0, 1]])
def test_packed_weights_give_the_same_numbers(pair: str, counts: list[int]) -> None:
    dtype, a_recipe, b_recipe = data.PAIRS[pair]
    g = torch.Generator().manual_seed(3)
    a, b = torch.randn(sum(counts), 96, generator=g), torch.randn(3, 40, 96, generator=g)
    left, right = _operand(a, a_recipe, dtype), _operand(b, b_recipe, dtype)
    packed = deep_gmm.prepack(right)
    assert isinstance(packed, Packed)
    assert packed.shape == (3, 40, 96)
    assert packed.layout == ("cpu_f16" if halves.rooms()[0] and pair in ("bf16", "f16") else "cpu_f32")
    index = torch.tensor(counts)
    got = deep_gmm.grouped_gemm(left, packed, index)
    want = deep_gmm.grouped_gemm(left, right, index)
    torch.testing.assert_close(got, want, rtol=2**-7, atol=1e-4)


def test_packed_weights_are_used_by_every_op() -> None:
    w, x = torch.randn(2, 6, 8).bfloat16(), torch.randn(4, 8).bfloat16()
    double = deep_gmm.prepack(w * 2)
    assert double.packed is not None
    twice = Packed(w, double.packed, double.layout)
    counts = torch.tensor([2, 2])
    plain = deep_gmm.grouped_gemm(x, w, counts)
    torch.testing.assert_close(deep_gmm.grouped_gemm(x, twice, counts), plain * 2)
    torch.testing.assert_close(deep_gmm.masked_grouped_gemm(x.view(2, 2, 8), twice, counts).view(4, 6), plain * 2)
    double = deep_gmm.prepack(w[0] * 2)
    flat = Packed(w[0], double.packed, double.layout)
    torch.testing.assert_close(deep_gmm.gemm(x, flat), deep_gmm.gemm(x, w[0]) * 2)


def test_a_foreign_layout_falls_back_to_the_plain_weights() -> None:
    x, w = torch.randn(3, 8), torch.randn(4, 8)
    got = deep_gmm.gemm(x, Packed(w, torch.zeros(7), "somebody_else"))
    torch.testing.assert_close(got, x @ w.t())
    spec = get_spec("deep_gmm.gemm")
    args = (x, None, "plain", w, None, "plain", torch.zeros(7), "somebody_else", None, None, torch.float32)
    device = current_device()
    call = make_call(spec, args, (None,), device.torch_device)
    refusals = [c.supports(device.props, call).reasons for c in candidates(device, spec.name)]
    assert any("somebody_else" in reason for reasons in refusals for reason in reasons)
    assert Op(spec).resolve(device, args).kernel.name == "portable"


@pytest.mark.parametrize("weights", [torch.ones(3), 3, None])
def test_prepack_names_bad_weights(weights: object) -> None:
    with pytest.raises(InvalidArgument, match="weights"):
        deep_gmm.prepack(weights)  # type: ignore[arg-type]


@pytest.mark.parametrize("pair", ["bf16", "f32", "fp8"])
def test_twenty_runs_are_bit_equal(pair: str) -> None:
    dtype, a_recipe, b_recipe = data.PAIRS[pair]
    a = _operand(torch.randn(33, 200), a_recipe, dtype)
    b = _operand(torch.randn(3, 70, 200), b_recipe, dtype)
    counts = torch.tensor([5, 0, 28])
    first = deep_gmm.grouped_gemm(a, b, counts)
    assert all(torch.equal(first, deep_gmm.grouped_gemm(a, b, counts)) for _ in range(20))


def test_a_nan_stays_in_its_row_and_column() -> None:
    a, b = torch.randn(5, 130), torch.randn(7, 130)
    a[2, 129], b[3, 0] = torch.nan, torch.nan
    bad = deep_gmm.gemm(a, b).isnan()
    assert bad[2].all()
    assert bad[:, 3].all()
    assert bad.sum() == 7 + 5 - 1


def test_no_depth_gives_addends() -> None:
    c, bias = torch.randn(3, 4), torch.randn(4)
    got = deep_gmm.gemm(torch.empty(3, 0), torch.empty(4, 0), c=c, bias=bias)
    assert torch.equal(got, c + bias)
    assert torch.equal(deep_gmm.gemm(torch.empty(3, 0), torch.empty(4, 0)), torch.zeros(3, 4))


@pytest.mark.parametrize("value", [None, 3, [[1.0]], "x"])
def test_operands_of_other_types_are_named(value: object) -> None:
    with pytest.raises(InvalidArgument, match="gemm: a"):
        deep_gmm.gemm(value, torch.ones(1, 1))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="gemm: b"):
        deep_gmm.gemm(torch.ones(1, 1), value)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 20), st.integers(0, 40), st.booleans())
def test_grouped_equals_one_product_per_group(counts, n, k, packed) -> None:
    g = torch.Generator().manual_seed(sum(counts) + 100 * n + k)
    a, b = torch.randn(sum(counts), k, generator=g), torch.randn(len(counts), n, k, generator=g)
    with deepinfer.use_backend("cpu"):
        weights = deep_gmm.prepack(b) if packed else b
        got = deep_gmm.grouped_gemm(a, weights, torch.tensor(counts))
    want = torch.cat([x @ w.t() for x, w in zip(a.split(counts), b, strict=True)])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limit", [None, 0.5])
def test_mlp_is_the_composition_of_its_parts(dtype: torch.dtype, limit: float | None) -> None:
    x, w13, w2 = torch.randn(9, 32).to(dtype), torch.randn(2, 48, 32).to(dtype), torch.randn(2, 10, 24).to(dtype)
    counts, weights = torch.tensor([4, 5]), torch.rand(9)
    h = deep_gmm.grouped_gemm(x, w13, counts).float()
    gate, up = h[:, :24], h[:, 24:]
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    act = (gate / (1 + torch.exp(-gate)) * up * weights[:, None]).to(dtype)
    want = deep_gmm.grouped_gemm(act, w2, counts)
    got = deep_gmm.grouped_swiglu_mlp(x, w13, w2, counts, route_weights=weights, limit=limit)
    rtol, atol = (2**-6, 0.2) if dtype is torch.bfloat16 else (1e-4, 1e-4)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


def test_mlp_with_fp8_says_what_is_missing() -> None:
    x = quant.quantize_fp8(torch.randn(4, 128))
    w13 = quant.quantize_fp8(torch.randn(1, 256, 128), block=(128, 128))
    w2 = quant.quantize_fp8(torch.randn(1, 64, 128), block=(128, 128))
    counts = torch.tensor([4])
    with pytest.raises(InvalidArgument, match="fp8_1x128"):
        deep_gmm.grouped_swiglu_mlp(x, w13, w2, counts)
    assert deep_gmm.grouped_swiglu_mlp(x, w13, w2, counts, quantize="fp8_1x128").dtype is torch.bfloat16


def test_an_output_may_be_strided_and_is_returned() -> None:
    a, b = torch.randn(5, 16), torch.randn(2, 6, 16)
    room = torch.full((5, 12), 3.0)
    got = deep_gmm.grouped_gemm(a, b, torch.tensor([2, 3]), out=room[:, ::2])
    assert got.data_ptr() == room.data_ptr()
    assert torch.equal(got.contiguous(), deep_gmm.grouped_gemm(a, b, torch.tensor([2, 3])))
    assert (room[:, 1::2] == 3).all()
    with pytest.raises(InvalidArgument, match="out"):
        deep_gmm.grouped_gemm(a, b, torch.tensor([2, 3]), out=torch.empty(5, 7))
