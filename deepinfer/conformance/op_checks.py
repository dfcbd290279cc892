"""The checks of one op case (level L2). Each is a function of `Prepared` that raises `Breach` or returns.

Order matters only for reading: `reference` is the meaning, the rest are the promises round it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from deepinfer.conformance import memory
from deepinfer.conformance.compare import bits, close, same_bits
from deepinfer.conformance.item import Vacuous, require_none
from deepinfer.conformance.prepared import Prepared
from deepinfer.errors import InvalidArgument, UnsupportedError
from deepinfer.registry.dispatch import make_call

POISON_SEED = 97
SMALL = 1 << 16  # elements; beyond it no layout with other strides in the last dimension is tried


def reference(p: Prepared) -> str:
    """Results agree with the float64 reference, and have the shape and dtype the spec promises; names the kernel."""
    problems: list[str] = []
    for name, got in p.spec.comparable(p.args, p.plain).items():
        tolerance = p.spec.tolerance(p.args, name)
        problems += close(name, got, p.reference[name], tolerance, p.valid[name], p.rounding[name])
    require_none(problems + _metadata(p))
    return str(p.kernel().name)


def _metadata(p: Prepared) -> list[str]:
    call = make_call(p.spec, p.ordered(p.fresh()), (None,) * len(p.spec.returns), p.target.device.torch_device)
    problems = []
    for name, meta in zip(p.spec.returns, p.spec.outputs(call), strict=True):
        got = p.plain[name]
        if tuple(got.shape) != tuple(meta.shape) or got.dtype != meta.dtype:
            problems.append(f"{name}: is {got.dtype} {list(got.shape)}, the spec says {meta.dtype} {list(meta.shape)}")
    return problems


def inputs(p: Prepared) -> None:
    """No input is modified unless its parameter says so, none is handed back as a result, none is kept alive."""
    args = p.fresh()
    before = {name: bits(value) for name, value in args.items() if isinstance(value, torch.Tensor)}
    outputs = p.run(args)
    changed = [n for n, old in before.items() if n not in p.mutated and not torch.equal(old, bits(args[n]))]
    problems = [f"{name}: the op modified this input" for name in changed]
    for name, tensor in zip(p.spec.returns, outputs, strict=True):
        shared = [other for other in before if memory.share(tensor, args[other])]
        problems += [f"{name}: the result lies in the memory of the input {other}" for other in shared]
    watched = {name: weakref.ref(args[name]) for name in before}
    args.clear()
    if any(reference() is not None for reference in watched.values()):
        gc.collect()
        kept = [name for name, reference in watched.items() if reference() is not None]
        problems += [f"{name}: the op keeps this input alive after the call" for name in kept]
    require_none(problems)


def guards(p: Prepared) -> None:
    """With `out=` nothing outside the tensors is written, undefined parts keep their bytes, old content is not read."""
    problems: list[str] = []
    for pattern in memory.PATTERNS:
        args = p.fresh()
        holders = _guard_outputs(p, args, pattern)
        for name in p.mutated:
            if isinstance(args[name], torch.Tensor):
                holders[name] = memory.guarded_copy(p.target.device, args[name], pattern)
                args[name] = holders[name].tensor
        outs = tuple(holders[name].tensor for name in p.spec.returns)
        returned = p.run(args, out=outs)
        problems += _judge_guarded(p, holders, returned, args)
    require_none(sorted(set(problems)))


def _guard_outputs(p: Prepared, args: dict[str, Any], pattern: int) -> dict[str, memory.Guarded]:
    call = make_call(p.spec, p.ordered(args), (None,) * len(p.spec.returns), p.target.device.torch_device)
    metas = zip(p.spec.returns, p.spec.outputs(call), strict=True)
    return {name: memory.Guarded(p.target.device, meta.shape, meta.dtype, pattern) for name, meta in metas}


def _judge_guarded(
    p: Prepared, holders: dict[str, memory.Guarded], returned: tuple[torch.Tensor, ...], args: dict[str, Any]
) -> Iterator[str]:
    for name, tensor in zip(p.spec.returns, returned, strict=True):
        if tensor.data_ptr() != holders[name].tensor.data_ptr() and tensor.numel():
            yield f"{name}: the call returned another tensor than the given out"
    for name, got in p.collect(tuple(holders[n].tensor for n in p.spec.returns), args).items():
        mask = p.valid[name]
        yield from holders[name].problems(name)
        yield from same_bits(f"{name} (with out=)", got, p.plain[name], mask)
        if mask is not None:
            yield from holders[name].unwritten(name, ~mask.cpu().bool().broadcast_to(got.shape))


def repeat(p: Prepared) -> None:
    """Repeated runs give equal bits, in memory of their own, and change nothing round them; one more is `rewritten`."""
    generator = torch.get_rng_state()
    problems: list[str] = []
    results = []
    for _ in range(2):
        before, args = _surroundings(), p.fresh()
        results.append(p.run(args))
        after = _surroundings()
        changed = [what for what, now in after.items() if now != before[what]]
        problems += [f"the op changed {what} from {before[what]} to {after[what]}" for what in changed]
        for name, tensor in p.collect(results[-1], args).items():
            problems += same_bits(f"{name} (again)", tensor, p.plain[name], p.valid[name])
    for name, old, new in zip(p.spec.returns, *results, strict=True):
        if memory.share(new, old):
            problems.append(f"{name}: a second call gave its result in the memory of the first one's, which is in use")
    if not torch.equal(generator, torch.get_rng_state()):
        problems.append("the op drew from torch's global generator")
    require_none(problems)


def _surroundings() -> dict[str, object]:
    """Settings of the process and thread that belong to the caller."""
    return {
        "the number of threads": torch.get_num_threads(), "the default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(), "deterministic mode": torch.are_deterministic_algorithms_enabled(),
    }


def rewritten(p: Prepared) -> None:
    """New values written into the same tensors count: nothing read in an earlier call is remembered by address."""
    args = p.fresh()
    payloads = {
        name: value for name, value in args.items()
        if name not in p.mutated and _writable(value) and value.ndim and value.shape[0] > 1
    }
    for value in payloads.values():
        _swap_rows(value)
    p.run(args)
    for value in payloads.values():
        _swap_rows(value)
    args |= {name: p.fresh()[name] for name in p.mutated}
    _same_as_plain(p, args, "inputs rewritten in place")


def _swap_rows(value: torch.Tensor) -> None:
    """Reverse the first dimension of a payload in place; integers that may be indices or lengths stay as they are."""
    if value.dtype == torch.uint8:
        value.copy_(value.flip(0))
    elif value.is_floating_point():
        data = value.view(torch.uint8) if value.element_size() == 1 else value
        data.copy_(data.flip(0))


def poison(p: Prepared) -> None:
    """NaN, inf and garbage where the op must not look change no bit."""
    spoiled = p.spec.poison(p.args, torch.Generator().manual_seed(POISON_SEED))
    if spoiled is None:
        raise Vacuous("the specification names no place outside the valid region for this case")
    args = p.fresh(spoiled)
    got = p.collect(p.run(args), args)
    problems: list[str] = []
    for name in p.spec.returns:
        problems += same_bits(f"{name} (poisoned surroundings)", got[name], p.plain[name], p.valid[name])
    require_none(problems)


def _same_as_plain(p: Prepared, args: dict[str, Any], label: str) -> None:
    got = p.collect(p.run(args), args)
    problems: list[str] = []
    for name, tensor in got.items():
        problems += same_bits(f"{name} ({label})", tensor, p.plain[name], p.valid[name])
    require_none(problems)


def layouts(p: Prepared) -> None:
    """Strided, transposed and re-typed inputs give the same results or are refused by name."""
    problems: list[str] = []
    for makers, may_refuse in ((memory.MUST_TAKE, False), (memory.JOINT, True)):
        for label, make in makers.items():
            problems += _joint(p, {label: make}, may_refuse)
    for label, make in memory.LAST.items():
        for indices in (True, False):  # apart, since most ops take such indices and refuse such payloads
            problems += _joint(p, {label: make}, True, partial(_small, indices))
    require_none(problems)


def _small(indices: bool, tensor: torch.Tensor) -> bool:
    return tensor.numel() <= SMALL and (tensor.dtype in (torch.int32, torch.int64)) is indices


def _joint(
    p: Prepared, maker: dict[str, memory.Relayout], may_refuse: bool,
    chosen: Callable[[torch.Tensor], bool] = lambda _: True,
) -> list[str]:
    """All chosen tensors laid out anew at once; where that is refused, each alone."""
    (label,) = maker
    changed = {name: tensor for name, _, tensor in memory.variants(p.fresh(), maker) if chosen(tensor)}
    if not changed:
        return []
    try:
        return _compare_layout(p, changed, label)
    except (InvalidArgument, UnsupportedError):
        problems: list[str] = []
        for name, _, tensor in memory.variants(p.fresh(), maker):
            problems += _try_layout(p, {name: tensor}, label, may_refuse) if name in changed else []
        return problems


def _try_layout(p: Prepared, changed: dict[str, torch.Tensor], label: str, may_refuse: bool) -> list[str]:
    (name,) = changed
    try:
        return _compare_layout(p, changed, label)
    except (InvalidArgument, UnsupportedError) as error:
        if not may_refuse:
            return [f"{name} ({label}): refused, but must be taken: {error}"]
        if name not in str(error):
            return [f"{name} ({label}): refused without naming {name!r}: {error}"]
        return []


def _compare_layout(p: Prepared, changed: dict[str, torch.Tensor], label: str) -> list[str]:
    args = p.fresh() | changed
    got = p.collect(p.run(args), args)
    problems: list[str] = []
    where = f"{', '.join(changed)} {label}"
    for name, tensor in p.spec.comparable(p.args, got).items():
        tolerance, wanted = p.spec.tolerance(p.args, name), p.reference[name]
        problems += close(f"{name} ({where})", tensor, wanted, tolerance, p.valid[name], p.rounding[name])
    return problems


def invariance(p: Prepared) -> None:
    """A row's bits do not depend on the rest of the batch, where the kernel claims it (C81)."""
    kernel = p.kernel()
    if not kernel.batch_invariant:
        raise Vacuous(f"kernel {kernel.name} does not claim batch invariance for this case")
    variants = p.spec.batch_variants(p.args)
    if not variants:
        raise Vacuous("the specification gives no sub-batches for this case")
    problems: list[str] = []
    for number, (sub, selectors) in enumerate(variants):
        args = p.fresh(sub)
        outputs = p.run(args)
        for name, got, selector in zip(p.spec.returns, outputs, selectors, strict=True):
            whole, mask = p.plain[name][selector], p.valid[name]
            part = None if mask is None else mask.broadcast_to(p.plain[name].shape)[selector]
            problems += same_bits(f"{name} (sub-batch {number})", p.target.device.to_host(got), whole, part)
    require_none(problems)


def stream(p: Prepared) -> None:
    """On a stream of its own the op is ordered by that stream alone: waiting for it is enough."""
    device = p.target.device
    args = p.fresh()
    device.synchronize()
    wanted = p.plain
    side = device.new_stream()
    device.set_stream(side)
    try:
        outputs = p.enqueue(args)
        side.synchronize()
    finally:
        device.set_stream(None)
    problems: list[str] = []
    for name, tensor in zip(p.spec.returns, outputs, strict=True):
        problems += same_bits(f"{name} (non-default stream)", tensor.cpu(), wanted[name], p.valid[name])
    require_none(problems)


def graph(p: Prepared) -> None:
    """A call captured while its inputs hold zeros replays with what they hold later, and gives the plain bits."""
    device = p.target.device
    args = p.fresh()
    outputs = p.run(args)  # compiles and plans outside the capture
    args = _refill(args, p.fresh())
    keep = {name: value.clone() for name, value in args.items() if _writable(value)}
    for value in (*(args[name] for name in keep), *outputs):
        value.copy_(torch.zeros_like(value))
    device.synchronize()
    with device.graph() as captured:
        p.enqueue(args, outputs)
    _refill(args, keep)
    captured.replay()
    device.synchronize()
    problems: list[str] = []
    for name, tensor in p.collect(outputs, args).items():
        problems += same_bits(f"{name} (graph replay)", tensor, p.plain[name], p.valid[name])
    require_none(problems)


def _writable(value: Any) -> bool:
    """A tensor whose elements lie at different addresses."""
    return isinstance(value, torch.Tensor) and 0 not in [
        step for size, step in zip(value.shape, value.stride(), strict=True) if size > 1
    ]


def _refill(args: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    for name, value in values.items():
        if _writable(value):
            args[name].copy_(value)
    return args


Check = Callable[[Prepared], str | None]
ALWAYS: dict[str, Check] = {
    "reference": reference, "inputs": inputs, "guards": guards, "repeat": repeat, "rewritten": rewritten,
    "layouts": layouts,
}
