"""The three local ops against their references: every case, every error case, poison, and `out=`."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest
import torch

from deepinfer.ops.deep_ep.expert_layout import ExpertLayout
from deepinfer.ops.deep_ep.geometry import expert_capacity
from deepinfer.ops.deep_ep.reduce import Reduce
from deepinfer.ops.deep_ep.send_plan import SendPlan
from deepinfer.registry import Op, get_spec
from deepinfer.registry.dispatch import make_call

SPECS = [get_spec(spec.name) for spec in (SendPlan, ExpertLayout, Reduce)]
CASES = [(spec, case) for spec in SPECS for case in spec.cases() if "bench" not in case.tags]
ERRORS = [(spec, case) for spec in SPECS for case in spec.error_cases()]
DOCUMENTED = ("buffer", "geometry", "local", "placement")


def _names(entry):
    return getattr(entry, "name", None) or entry.id


@pytest.mark.parametrize(("spec", "case"), CASES, ids=_names)
def test_portable_equals_reference(spec, case):
    args = case.build()
    want = spec.reference(args)
    got = Op(spec)(*args.values())
    for name, a, b in zip(spec.returns, got, want, strict=True):
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name
    out = tuple(torch.zeros_like(value) for value in got)
    written = Op(spec)(*args.values(), out=out)
    assert all(a is b and torch.equal(a, c) for a, b, c in zip(written, out, got, strict=True))
    poisoned = spec.poison(args, torch.Generator().manual_seed(1))
    if poisoned is not None:
        assert all(torch.equal(a, b) for a, b in zip(Op(spec)(*poisoned.values()), got, strict=True))


@pytest.mark.parametrize(("spec", "case"), ERRORS, ids=_names)
def test_errors_name_the_argument(spec, case):
    with pytest.raises(case.error) as caught:
        Op(spec)(*case.make(torch.Generator().manual_seed(0)).values())
    assert all(word in str(caught.value) for word in case.mentions)


@pytest.mark.parametrize("spec", SPECS, ids=_names)
def test_cost_counts_every_byte_once(spec):
    """Inputs once, outputs once."""
    args = next(case for case in spec.cases() if "edge" not in case.tags).build()
    tensors = [value for value in (*args.values(), *spec.reference(args)) if isinstance(value, torch.Tensor)]
    call = make_call(spec, tuple(args.values()), (None,) * len(spec.returns), torch.device("cpu"))
    assert spec.cost(call).nbytes == sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("alignment", [1, 3, 8])
def test_expert_capacity_is_reached_and_never_exceeded(alignment):
    layout = Op(get_spec(ExpertLayout.name))
    for rows, lanes, experts in [(1, 1, 4), (3, 2, 4), (6, 2, 2), (5, 1, 1)]:
        capacity = expert_capacity(rows, lanes, experts, alignment)
        most = 0
        for seed in range(40):
            generator = torch.Generator().manual_seed(seed)
            ids = torch.randint(0, experts, (rows, lanes), generator=generator).to(torch.int32)
            most = max(most, int(layout(ids, experts, alignment, capacity)[2]))
        assert most <= capacity
        assert most > capacity - alignment


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_examples_c47(name):
    """C47: the numbers in the documentation are what the code gives."""
    result = doctest.testmod(import_module(f"deepinfer.ops.deep_ep.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
