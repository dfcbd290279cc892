"""Any argument of any type, rank, dtype, shape and value: a DeepInfer error or a result of the promised shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import deepinfer
from deepinfer.errors import DeepInferError
from deepinfer.ops import Quantized, deep_gmm, quant

DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool,
    torch.int8, torch.float8_e4m3fn,
)
sizes = st.sampled_from([0, 1, 2, 3, 4, 32, 33])
index = st.sampled_from([0, 1, 2, 5, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    """Random rank, shape, dtype and strides, with NaN and infinities among float values."""
    shape = draw(st.lists(sizes, max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    wide = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    if wide.numel():
        wide.view(-1)[0] = draw(st.sampled_from([0.0, torch.nan, torch.inf, -1e30]))
    made = wide.nan_to_num(0).clamp(-100, 100).to(dtype) if not dtype.is_floating_point else wide.to(dtype)
    return made.t() if made.ndim == 2 and draw(st.booleans()) else made


vectors = st.lists(index, max_size=4).map(lambda values: torch.tensor(values, dtype=torch.int64))
quantised = st.builds(
    lambda x, block, kind: quant.quantize_mxfp4(x, block=block) if kind == "fp4"
    else quant.quantize_fp8(x, block=block, scale_dtype=kind),
    st.tuples(sizes, sizes).map(lambda shape: torch.ones(shape[0], 2 * shape[1])),
    st.sampled_from([(1, 128), (1, 32), (32, 32), (128, 128)]), st.sampled_from(["f32", "ue8m0", "fp4"]),
)
odd = st.sampled_from([None, 0, -1, 1.5, "x", [], True, 2**70])
anything = st.one_of(tensors(), vectors, quantised, odd)
dtypes = st.sampled_from([None, torch.float32, torch.bfloat16, torch.int8])


def _survives(function: Any, *args: Any, **options: Any) -> None:
    with deepinfer.use_backend("cpu"):
        try:
            result = function(*args, **options)
        except DeepInferError:
            return
    assert isinstance(result, torch.Tensor | Quantized | tuple | deep_gmm.Packed)


@st.composite
def calls(draw: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A public function with arguments of which about half are of the right kind."""
    pick = lambda *good: draw(st.one_of(*good, anything))  # noqa: E731
    validate = draw(st.booleans())
    name = draw(st.sampled_from(["gemm", "grouped", "masked", "mlp", "rows", "prepack", "fp8", "fp4", "deq", "pack"]))
    if name == "gemm":
        options = {"c": draw(st.one_of(st.none(), tensors())), "bias": draw(st.one_of(st.none(), tensors()))}
        return deep_gmm.gemm, (pick(tensors()), pick(tensors())), {**options, "out_dtype": draw(dtypes)}
    if name == "grouped":
        options = {"starts": pick(st.none(), vectors), "out_dtype": draw(dtypes), "validate": validate}
        return deep_gmm.grouped_gemm, (pick(tensors()), pick(tensors()), pick(vectors)), options
    if name == "masked":
        return deep_gmm.masked_grouped_gemm, (pick(), pick(), pick(vectors)), {"validate": validate}
    if name == "mlp":
        options = {"route_weights": pick(st.none()), "limit": draw(odd), "quantize": draw(odd), "validate": validate}
        return deep_gmm.grouped_swiglu_mlp, (pick(), pick(), pick(), pick(vectors)), options
    if name == "rows":
        return deep_gmm.group_rows, (pick(vectors), draw(st.one_of(sizes, odd))), {
            "alignment": draw(st.one_of(sizes, odd)), "validate": validate,
        }
    if name == "prepack":
        return deep_gmm.prepack, (pick(),), {}
    block = draw(st.one_of(odd, st.tuples(index, index), st.just((1, 32))))
    if name == "fp8":
        options = {"block": block, "scale_dtype": draw(st.one_of(odd, st.just("ue8m0"))), "amax_floor": draw(odd)}
        return quant.quantize_fp8, (pick(),), options
    if name == "fp4":
        return quant.quantize_mxfp4, (pick(),), {"block": block}
    if name == "deq":
        return quant.dequantize, (pick(quantised),), {"dtype": draw(dtypes)}
    options = {"block_rows": draw(st.one_of(sizes, odd)), "mn": draw(st.one_of(sizes, odd)), "rows": pick(st.none())}
    return quant.pack_scales, (pick(tensors()),), {**options, "validate": validate}


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(max_examples=300, deadline=None, suppress_health_check=QUIET)
@given(calls())
def test_bad_input_never_crashes(call) -> None:
    function, args, options = call
    _survives(function, *args, **options)


@pytest.mark.long
@settings(max_examples=20_000, deadline=None, suppress_health_check=QUIET)
@given(calls())
def test_bad_input_never_crashes_at_length(call) -> None:
    function, args, options = call
    _survives(function, *args, **options)
