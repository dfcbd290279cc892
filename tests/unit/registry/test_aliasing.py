"""Results that share memory with arguments, each other or themselves are refused; columns of one buffer are not."""

from __future__ import annotations

import pytest
import torch

import deepinfer
from deepinfer.errors import InvalidArgument, OutOfMemory
from deepinfer.ops import deep_gmm, flash_mla, norm, quant
from deepinfer.registry import Op, get_spec
from deepinfer.registry.aliasing import disjoint, overlaps_itself
from deepinfer.registry.call import TensorMeta


@pytest.fixture(autouse=True)
def _cpu() -> None:
    deepinfer.set_backend("cpu")


def test_an_out_over_an_argument_is_refused_with_both_names() -> None:
    a = torch.randn(8, 8)
    with pytest.raises(InvalidArgument, match=r"deep_gmm.gemm: out\[d\].*must not share memory with a"):
        deep_gmm.gemm(a, torch.randn(8, 8), out=a)
    buffer = torch.randn(9, 8)
    with pytest.raises(InvalidArgument, match=r"norm.rms_norm: out\[y\].*share memory with x"):
        norm.rms_norm(buffer[:8], torch.ones(8), out=buffer[1:])


def test_two_results_in_one_place_are_refused() -> None:
    x, y = torch.randn(2, 4), torch.empty(2, 4)
    with pytest.raises(InvalidArgument, match=r"out\[new_residual\].*share memory with out\[y\]"):
        norm.fused_add_rms_norm(x, x.clone(), torch.ones(4), out=(y, y))


@pytest.mark.parametrize("out", [torch.empty(1, 4).expand(3, 4), torch.empty(6).as_strided((3, 4), (1, 1))])
def test_a_result_that_overlaps_itself_is_refused(out: torch.Tensor) -> None:
    with pytest.raises(InvalidArgument, match=r"out\[y\].stride.*must not overlap"):
        norm.rms_norm(torch.randn(3, 4), torch.ones(4), out=out)


def test_a_cache_is_not_written_from_itself() -> None:
    cache = torch.zeros(2, 4, 8)
    with pytest.raises(InvalidArgument, match=r"kv_cache.*share memory with rows"):
        flash_mla.kv_cache_write(cache, cache[0], torch.arange(4), format="f32")


def test_columns_of_one_buffer_are_separate() -> None:
    buffer = torch.randn(5, 12)
    wanted = norm.rms_norm(buffer[:, :6].clone(), torch.ones(6))
    norm.rms_norm(buffer[:, :6], torch.ones(6), out=buffer[:, 6:])
    torch.testing.assert_close(buffer[:, 6:], wanted)
    assert disjoint(buffer[:, :6], buffer[:, 6:])
    assert not disjoint(buffer[:, :7], buffer[:, 6:])
    assert not disjoint(buffer[:, :6], buffer.t()[:6])


def test_overlap_is_judged_by_strides() -> None:
    def meta(shape: tuple[int, ...], stride: tuple[int, ...]) -> TensorMeta:
        return TensorMeta(shape, torch.float32, stride, torch.device("cpu"))

    assert not overlaps_itself(meta((2, 3), (3, 1)))
    assert not overlaps_itself(meta((2, 3), (1, 2)))
    assert not overlaps_itself(meta((1, 3), (0, 1)))
    assert not overlaps_itself(meta((0, 3), (0, 0)))
    assert overlaps_itself(meta((2, 3), (2, 1)))


def test_results_keep_no_gradient_graph() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    assert not norm.rms_norm(torch.ones(2, 4, requires_grad=True), weight).requires_grad
    assert weight.requires_grad


def test_absurd_sizes_are_refused_before_work_starts() -> None:
    with pytest.raises(InvalidArgument, match=r"x: got \[1, 1099511627776\].*more than the memory"):
        quant.quantize_fp8(torch.zeros(1, 1).expand(1, 1 << 40))


def test_a_failing_allocator_is_an_error_of_the_library() -> None:
    op = deepinfer.ops.norm.rms_norm
    with pytest.MonkeyPatch.context() as patch:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

        patch.setattr("deepinfer.registry.dispatch._run", fail)
        with pytest.raises(OutOfMemory, match=r"norm.rms_norm: .*cpu:0"):
            op(torch.ones(1, 4), torch.ones(4))
    assert issubclass(OutOfMemory, MemoryError)


def test_a_lazily_negated_view_is_refused_whatever_came_before() -> None:
    """Kernels read memory, where the sign of such a view is not yet changed; a cached call must not let it through."""
    numbers = torch.view_as_complex(torch.arange(16.0).view(2, 4, 2))
    plain, negated = numbers.imag, numbers.conj().imag
    assert negated.is_neg()
    weight, out = torch.ones(4), torch.empty(2, 4)
    found = norm.rms_norm(plain, weight, 1e-6)
    assert torch.equal(norm.rms_norm(negated.resolve_neg(), weight, 1e-6), -found)
    norm.rms_norm(plain, weight, 1e-6, out=out)
    for given in (None, out):
        with pytest.raises(InvalidArgument, match=r"x.*negated.*resolve_neg"):
            norm.rms_norm(negated, weight, 1e-6, out=given)
    with pytest.raises(InvalidArgument, match=r"out\[y\].*negated"):
        norm.rms_norm(out, weight, 1e-6, out=negated)


def test_results_that_are_no_tuple_are_refused() -> None:
    op = Op(get_spec("norm.rms_norm"))
    with pytest.raises(InvalidArgument, match=r"out.*tuple of 1 tensors"):
        op(torch.ones(2, 4), torch.ones(4), 1e-6, out=3)
