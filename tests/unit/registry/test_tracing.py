"""Public ops under tracers: torch.compile, torch.export, make_fx, FakeTensorMode, torch.jit.trace; and torch.func."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import deepinfer
from deepinfer.errors import InvalidArgument
from deepinfer.ops import deep_gmm, flash_mla, moe, norm, rope, sampling
from deepinfer.registry import Op, all_specs, torchlib

G = torch.Generator().manual_seed(3)
X, W = torch.randn(4, 8, generator=G), torch.rand(8, generator=G) + 0.5
CACHE, TABLE = torch.randn(3, 16, 576, generator=G), torch.tensor([[2, 0], [1, 2]], dtype=torch.int32)
LENS, Q = torch.tensor([20, 7], dtype=torch.int32), torch.randn(2, 1, 4, 576, generator=G)

Call = Callable[[torch.Tensor], Any]
CALLS: dict[str, tuple[Call, torch.Tensor]] = {
    "norm": (lambda x: norm.rms_norm(x, W), X),
    "norm with out": (lambda x: norm.rms_norm(x, W, out=torch.empty_like(x)), X),
    "gemm": (lambda x: deep_gmm.gemm(x, X), X),
    "decode": (lambda q: flash_mla.decode(q, CACHE, TABLE, LENS, format=flash_mla.KVFormat.F32), Q),
    "route": (lambda x: moe.route(x, 2), X),
    "rope": (lambda x: rope.apply(x, torch.arange(4), rope.build_table(8, 8, 1e4), width=8), X),
    "sample": (lambda x: sampling.sample(x, temperature=0.0), X),
}


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with deepinfer.use_backend("cpu"):
        yield


def _equal(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return torch.equal(got, wanted)
    if isinstance(wanted, tuple | list):
        return len(got) == len(wanted) and all(map(_equal, got, wanted))
    return bool(got == wanted)


class _Module(torch.nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(x)


TRACERS: dict[str, Callable[[Call, torch.Tensor], Any]] = {
    "compile": lambda call, x: torch.compile(call, backend="eager")(x),
    "export": lambda call, x: torch.export.export(_Module(call), (x,)).module()(x),
    "make_fx": lambda call, x: make_fx(call)(x)(x),
    "jit trace": lambda call, x: torch.jit.trace(call, (x,), check_trace=False)(x),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", CALLS)
def test_a_traced_call_gives_the_same_bits(name: str, tracer: str) -> None:
    call, x = CALLS[name]
    torch._dynamo.reset()
    assert _equal(TRACERS[tracer](call, x), call(x))


@pytest.mark.parametrize("call", [CALLS["norm"][0], lambda x: torchlib.call("norm.rms_norm", x, W, 1e-6)])
def test_one_graph_without_breaks(call: Call) -> None:
    torch._dynamo.reset()
    assert torch.equal(torch.compile(call, backend="eager", fullgraph=True)(X), norm.rms_norm(X, W))


def test_a_graph_holds_one_node_per_op() -> None:
    nodes = make_fx(CALLS["norm"][0])(X).graph.nodes
    assert [str(n.target) for n in nodes if n.op == "call_function"] == ["deepinfer.norm_rms_norm.default"]


@pytest.mark.parametrize("name", [spec.name for spec in all_specs()])
def test_fake_tensors_get_metadata_and_leave_nothing_behind(name: str) -> None:
    """What kernels keep between calls must never be made of a tracer's tensors: the real call after it would break."""
    op = Op(next(spec for spec in all_specs() if spec.name == name))
    args = next(case for case in op.spec.cases() if "quick" in case.tags).build()
    values = [args[param.name] for param in op.spec.params]
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in values]
        made = op(*fakes)
    wanted = op(*values)
    assert [(t.shape, t.dtype) for t in made] == [(t.shape, t.dtype) for t in wanted]
    assert all(type(tensor) is torch.Tensor for tensor in wanted)


@pytest.mark.filterwarnings("ignore")  # torch's own, about fake addresses and masked tensors
def test_a_tensor_without_memory_is_refused_by_name() -> None:
    with FakeTensorMode():
        fake = torch.randn(4, 8)
    norm.rms_norm(X, W)  # a real call of the same metadata is remembered
    calls: list[Callable[[], Any]] = [
        lambda: norm.rms_norm(fake, W), lambda: torch.vmap(lambda x: norm.rms_norm(x, W))(X.expand(2, 4, 8)),
        lambda: torch.func.grad(lambda x: norm.rms_norm(x, W).sum())(X),
        lambda: norm.rms_norm(torch.masked.masked_tensor(X, X > 0), W),
        lambda: norm.rms_norm(torch.nn.UninitializedParameter(), W),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match=r"x: got 'an? "):
            call()


def test_tensors_of_inference_mode_are_written_there_alone() -> None:
    with torch.inference_mode():
        out = torch.empty(4, 8)
        norm.rms_norm(X, W, out=out)
    with pytest.raises(InvalidArgument, match="inference_mode"):
        norm.rms_norm(X, W, out=out)


def test_long_and_unprintable_values_do_not_bury_the_rule() -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    for value in (10**4000, Unprintable(), "x" * 10**5):
        with pytest.raises(InvalidArgument, match="eps") as caught:
            norm.rms_norm(X, W, value)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 600
