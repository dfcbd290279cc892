"""Every registered op, called with one or two arguments spoiled at random: a DeepInferError that names the op and one
of its parameters, or results of the promised shapes and dtypes that agree with the reference. Inputs keep their bytes,
nothing else is raised, nothing hangs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import random
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import deepinfer
from deepinfer.conformance.compare import bits, close
from deepinfer.errors import DeepInferError, InvalidArgument, OutOfMemory
from deepinfer.registry import Op, OpSpec, get_spec, spec_names
from deepinfer.registry.dispatch import make_call
from tests.unit import damage

QUICK, LONG = 16, 820  # examples per op: 464 and 23,780 in all
SMALL = 1 << 15  # elements of all tensors of a case together
# Log-probabilities that must sum to one; spoiled ones do not, and float32 noise on -5e6 has no exact answer.
DISTRIBUTIONS = {"sampling.verify_draft": ("target", "draft")}
SPARE = 2 << 30  # bytes
# Seconds for one example (the slowest takes 2 on an idle core); a hang ends the run with every stack printed. The clock
# starts anew with each example, so a busy machine makes a run longer without ending it.
TIMEOUT = 300.0


@dataclass
class Example:
    """One spoiled call. `names`: the spoiled parameters ("out" for the results)."""

    spec: OpSpec
    args: list[Any]
    out: Any
    names: tuple[str, ...]
    validate: bool

    def describe(self) -> str:
        shown = {p.name: _show(v) for p, v in zip(self.spec.params, self.args, strict=False)}
        return f"{self.spec.name} spoiled {self.names} validate={self.validate} args={shown} out={_show(self.out)}"


def _show(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        try:
            return f"{value.dtype}{list(value.shape)}{value.stride()}@{value.device}"
        except RuntimeError:
            return f"{value.dtype} without a shape"
    if isinstance(value, tuple | list):
        return [_show(v) for v in value[:4]]
    return repr(value)[:60]


def _small_case(spec: OpSpec, rng: random.Random) -> list[Any]:
    cases = [case for case in spec.cases() if "quick" in case.tags]
    while True:
        built = rng.choice(cases).build()
        args = [built[param.name] for param in spec.params]
        if sum(v.numel() for v in args if isinstance(v, torch.Tensor)) <= SMALL:
            return args


def example(name: str, seed: int) -> Example:
    """Example number `seed` of op `name`."""
    rng = random.Random(f"{name} {seed}")
    torch.manual_seed(seed)
    spec = get_spec(name)
    args = _small_case(spec, rng)
    validate = rng.random() < 0.2
    if spec.returns and rng.random() < 0.15:
        return Example(spec, args, _spoiled_out(spec, rng, args), ("out",), validate)
    if rng.random() < 0.02:
        return Example(spec, args[:-1] if rng.random() < 0.5 else [*args, None], None, ("arguments",), validate)
    chosen = rng.sample(range(len(args)), k=1 if rng.random() < 0.8 else min(2, len(args)))
    for at in chosen:
        args[at] = damage.spoil(rng, spec.params[at], args[at])
    return Example(spec, args, None, tuple(spec.params[at].name for at in chosen), validate)


def _spoiled_out(spec: OpSpec, rng: random.Random, args: list[Any]) -> Any:
    call = make_call(spec, args, (None,) * len(spec.returns), torch.device("cpu"))
    outs = tuple(torch.zeros(meta.shape, dtype=meta.dtype) for meta in spec.outputs(call))
    return damage.spoil_out(rng, outs, [v for v in args if isinstance(v, torch.Tensor)])


def _dense(value: Any) -> bool:
    ordinary = isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested
    return ordinary and value.device.type == "cpu" and not value.is_quantized


def _copy(value: Any) -> Any:
    """A copy for the reference; huge views and foreign objects are passed as they are."""
    return value.detach().clone() if _dense(value) and value.numel() <= 1 << 22 else value


def _problems(ex: Example) -> Iterator[str]:
    spec, op = ex.spec, Op(ex.spec)
    before = [_copy(v) for v in ex.args]
    try:
        results = op(*ex.args, out=ex.out, validate=ex.validate)
    except DeepInferError as error:
        yield from _judge_error(ex, error)
        results = None
    except Exception as error:
        yield f"raised {type(error).__name__}: {str(error)[:300]}"
        results = None
    overlay = ex.names == ("out",) and results is not None
    for param, old, new in zip(spec.params, before, ex.args, strict=False):
        if param.mutated or not _dense(new) or old is new or overlay:
            continue
        if not torch.equal(bits(old), bits(new)):
            yield f"input {param.name} was changed"
    if results is not None:
        yield from _judge_results(ex, before, results)


def _judge_error(ex: Example, error: DeepInferError) -> Iterator[str]:
    text = str(error)
    known = [*ex.names, *(p.name for p in ex.spec.params), *ex.spec.returns]
    if ex.spec.name not in text:
        yield f"the message does not name the op: {text[:200]}"
    if isinstance(error, OutOfMemory):
        return
    if not any(name in text for name in known):
        yield f"the message names no argument: {text[:200]}"
    if not isinstance(error, InvalidArgument) and ex.names == ("out",):
        yield f"a bad out gave {type(error).__name__}"


def _judge_results(ex: Example, before: list[Any], results: tuple[torch.Tensor, ...]) -> Iterator[str]:
    spec = ex.spec
    call = make_call(spec, before, (None,) * len(spec.returns), torch.device("cpu"))
    for name, meta, got in zip(spec.returns, spec.outputs(call), results, strict=True):
        if tuple(got.shape) != meta.shape or got.dtype != meta.dtype:
            yield f"{name} is {got.dtype} {list(got.shape)}, promised {meta.dtype} {list(meta.shape)}"
            return
        if got.requires_grad and ex.out is None:
            yield f"{name} records gradients"
    if sum(v.numel() for v in [*before, *results] if isinstance(v, torch.Tensor)) > 8 * SMALL:
        return
    args = {p.name: v for p, v in zip(spec.params, before, strict=True)}
    if _outside_contract(ex, args):
        return
    copies = {name: _copy(v) for name, v in args.items()}
    expected = dict(zip(spec.returns, spec.reference(copies), strict=True))
    valid, rounding = (dict(zip(spec.returns, part(args), strict=True)) for part in (spec.valid, spec.rounding))
    outputs = {n: t.detach().clone() for n, t in zip(spec.returns, results, strict=True)}
    for name in (p.name for p in spec.params if p.mutated):
        expected[name], valid[name], rounding[name] = copies[name], None, None
        outputs[name] = ex.args[[p.name for p in spec.params].index(name)]
    for name, got in spec.comparable(args, outputs).items():
        yield from close(name, got, expected[name], spec.tolerance(args, name), valid[name], rounding[name])


def _outside_contract(ex: Example, args: dict[str, Any]) -> bool:
    """Whether a spoiled float tensor holds values for which the op promises no result."""
    if set(ex.names) & set(DISTRIBUTIONS.get(ex.spec.name, ())):
        return True
    if not any(isinstance(args[n], torch.Tensor) and args[n].is_floating_point() for n in ex.names if n in args):
        return False
    try:
        ex.spec.check_values(args)
    except InvalidArgument:
        return True
    return False


@contextlib.contextmanager
def small_memory() -> Iterator[None]:
    """Little more address space than now: an absurd size fails in the allocator instead of eating the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run(name: str, first: int, count: int) -> list[str]:
    """Problems of examples first .. first + count - 1 of one op, with what reproduces them."""
    found = []
    try:
        with deepinfer.use_backend("cpu"), small_memory():
            for seed in range(first, first + count):
                faulthandler.dump_traceback_later(TIMEOUT, exit=True)
                ex = example(name, seed)
                try:
                    found += [f"seed {seed}: {problem}\n    {ex.describe()}" for problem in _problems(ex)]
                except Exception as error:
                    found.append(f"seed {seed}: the oracle failed with {error!r}\n    {ex.describe()}")
    finally:
        faulthandler.cancel_dump_traceback_later()
    return found


def _check(name: str, count: int) -> None:
    problems = run(name, 0, count)
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems[:8])


@pytest.mark.parametrize("name", spec_names())
def test_spoiled_arguments(name: str) -> None:
    _check(name, QUICK)


@pytest.mark.long
@pytest.mark.parametrize("name", spec_names())
def test_spoiled_arguments_at_length(name: str) -> None:
    _check(name, LONG)
