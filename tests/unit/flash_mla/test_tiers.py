"""The portable tier on every quick case (the conformance suite runs the native kernels), and blocks made tiny."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinfer_cpu import attention

from deepinfer.conformance.compare import close, same_bits
from deepinfer.hal import use_backend
from deepinfer.ops.flash_mla import decode as attend
from deepinfer.ops.flash_mla import online, portable_dense, portable_ragged, portable_short, portable_sparse
from deepinfer.ops.flash_mla.decode_cases import Shape
from deepinfer.registry import Case, Op, OpSpec, all_specs, get_spec, pin

SPECS = [spec for spec in all_specs() if spec.family == "flash_mla"]
NATIVE = [spec for spec in SPECS if spec.name.split(".")[1] not in ("merge_states", "kv_cache_write", "kv_cache_read")]


def _quick(spec: OpSpec) -> list[Case]:
    return [case for case in spec.cases() if "quick" in case.tags]


def _judge(spec: OpSpec, case: Case, args: dict[str, Any], outputs: tuple[torch.Tensor, ...]) -> list[str]:
    clean = case.build()
    wanted = dict(zip(spec.returns, spec.reference(clean), strict=True))
    got = dict(spec.comparable(args, dict(zip(spec.returns, outputs, strict=True))))
    for param in spec.params:
        if param.mutated:
            wanted[param.name], got[param.name] = clean[param.name], args[param.name]
    masks = dict(zip(spec.returns, spec.valid(args), strict=True))
    problems = []
    for name, tensor in got.items():
        problems += close(name, tensor, wanted[name], spec.tolerance(args, name), masks.get(name))
    return [f"{spec.name} [{case.id}] seed {case.seed}: {problem}" for problem in problems]


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_portable(spec: OpSpec, step: int) -> None:
    none = (None,) * len(spec.returns)
    problems = []
    for case in _quick(spec)[::step]:
        args = case.build()
        problems += _judge(spec, case, args, spec.portable(args, none))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("spec", NATIVE, ids=lambda spec: spec.name)
def test_portable_without_looking_at_values(spec: OpSpec, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on devices whose memory is not the host's: masks and loops to the limits that shapes give."""
    for module in (online, portable_dense):
        monkeypatch.setattr(module, "on_host", lambda x: False)
    none = (None,) * len(spec.returns)
    problems = []
    for case in _quick(spec)[2::step]:
        args = case.build()
        problems += _judge(spec, case, args, spec.portable(args, none))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_portable_ignores_poison(spec: OpSpec, step: int) -> None:
    none = (None,) * len(spec.returns)
    problems = []
    for case in _quick(spec)[1::step]:
        plain, spoiled = case.build(), spec.poison(case.build(), torch.Generator().manual_seed(1))
        assert spoiled is not None, case.id
        first, second = spec.portable(plain, none), spec.portable(spoiled, none)
        for name, a, b, mask in zip(spec.returns, second, first, spec.valid(plain), strict=True):
            problems += same_bits(f"{case.id} {name}", a, b, mask)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_ids_are_unique(spec: OpSpec) -> None:
    ids = [case.id for case in spec.cases()]
    assert len(set(ids)) == len(ids)


def test_there_are_enough_cases() -> None:
    assert sum(len(_quick(spec)) for spec in SPECS) >= 700


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("spec", NATIVE, ids=lambda spec: spec.name)
def test_many_blocks(spec: OpSpec, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks of a few keys and rows, every case runs the online softmax, in both tiers."""
    for module in (online, portable_dense, portable_ragged, portable_sparse):
        monkeypatch.setattr(module, "KEY_BLOCK", 7)
    monkeypatch.setattr(online, "BUDGET", 1 << 13)
    monkeypatch.setattr(portable_short, "BUDGET", 0)
    for module in (portable_dense, portable_ragged):
        monkeypatch.setattr(module, "BUDGET", 1 << 8)
    monkeypatch.setattr(attention, "SPAN", 8)
    monkeypatch.setattr(attention, "BLOCK", 5)
    monkeypatch.setattr(attention, "ROWS", 6)
    op, none = Op(spec), (None,) * len(spec.returns)
    problems = []
    with use_backend("cpu"):
        for case in [case for case in _quick(spec) if "long-query" not in case.id][::step]:
            args = case.build()
            problems += _judge(spec, case, args, spec.portable(args, none))
            problems += _judge(spec, case, args, op(*(args[param.name] for param in spec.params)))
    assert not problems, "\n".join(problems)


def test_kernels_take_the_cases() -> None:
    """The CPU's own kernels run (nearly) all quick cases of the ops they are for."""
    with use_backend("cpu") as device:
        for spec in NATIVE:
            cases = _quick(spec)[::5]
            taken = 0
            for case in cases:
                args = case.build()
                kernel = Op(spec).resolve(device, tuple(args[param.name] for param in spec.params)).kernel
                taken += kernel.tier == "native"
            assert taken >= 0.6 * len(cases), spec.name


def test_cases_name_their_reports() -> None:
    """Attention reports that need no accelerator are pinned by cases."""
    refs = {ref for spec in SPECS for case in spec.cases() for ref in case.refs}
    wanted = {"C01", "C02", "C03", "C04", "C05", "C06", "C07", "C10", "C11", "C12", "C13", "C14", "C16", "C17", "C18",
              "C19", "C20", "C21", "C22", "C23", "C26"}
    assert wanted <= refs, sorted(wanted - refs)


def test_get_spec_knows_the_family() -> None:
    assert {get_spec(spec.name) for spec in SPECS} == set(SPECS)
    assert len(SPECS) == 8


@pytest.mark.parametrize("lengths", [[3, 0], [0, 0], [0, 5], [16, 17]])
def test_no_query_tokens_beside_any_lengths(lengths: list[int]) -> None:
    """Nothing is asked for: results are empty whatever the requests hold, some of them without a key."""
    cache, table = torch.randn(4, 16, 576).bfloat16(), torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    with use_backend("cpu") as device, pin(device, "flash_mla.decode", "portable"):
        out, lse = attend(torch.empty(2, 0, 3, 576).bfloat16(), cache, table, torch.tensor(lengths).int())
    assert out.shape == (2, 0, 3, 512)
    assert lse.shape[0] == 2
    assert not lse.numel()


@pytest.mark.parametrize("lengths", [[70, 70], [70], [70, 5]])
@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_portable_decode_of_queries_in_any_order_of_memory(name: str, lengths: list[int]) -> None:
    """Dense queries whose requests, tokens or heads are stored in another order than the shape's."""
    spec, shape = get_spec("flash_mla.decode"), Shape(tuple(lengths), s_q=2, h=4, format=name)
    args = dict(shape.make(torch.Generator().manual_seed(0)))
    wanted = spec.portable(args, (None, None))
    for first, second in ((0, 1), (1, 2), (0, 2)):
        turned = args["q"].transpose(first, second).contiguous().transpose(first, second)
        for got, want in zip(spec.portable(args | {"q": turned}, (None, None)), wanted, strict=True):
            assert torch.equal(got, want)
