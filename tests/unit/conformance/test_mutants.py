"""The suite tests itself: broken backends on top of the cpu backend, each of which must be caught by the named check.

Every mutant is one realistic mistake in one kernel (or in the plugin or the device). The control test runs the same
wrapping without a mistake and must find nothing, so a catch is due to the mistake alone.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
import torch

from deepinfer.conformance import suite
from deepinfer.conformance.item import Item, Target
from deepinfer.conformance.profile import Profile
from deepinfer.conformance.report import Result
from deepinfer.hal import discovery, register_backend, unregister_backend
from deepinfer.hal.backend import Backend
from deepinfer.hal.device import Device, Event, Graph, Stream
from deepinfer.hal.host import HostEvent
from deepinfer.hal.types import YES, Cap, DeviceProps, Image, Probe, Support
from deepinfer.registry import Call, Kernel, PortableKernel, get_spec
from deepinfer.registry.kernel import Plan

NORM, FP8, DECODE, MASKED = "norm.rms_norm", "quant.quantize_fp8", "flash_mla.decode", "deep_gmm.masked_grouped_gemm"
Results = tuple[torch.Tensor, ...]
Named = dict[str, Any]
_serial = count()


class QueueStream(Stream):
    """Runs nothing before it is waited for, as a busy accelerator would."""

    def __init__(self, handle: int) -> None:
        self.handle, self.queue = handle, deque[Callable[[], object]]()

    def synchronize(self) -> None:
        while self.queue:
            self.queue.popleft()()

    def wait(self, event: Event) -> None:
        if isinstance(event, QueueEvent) and event.stream is not None:
            self.queue.append(event.stream.synchronize)


class QueueEvent(HostEvent):
    stream: QueueStream | None = None

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, QueueStream)
        super().record(stream)
        self.stream = stream


class QueueDevice(Device):
    """A host device with asynchronous streams."""

    def __init__(self, backend: str, caps: frozenset[Cap]) -> None:
        props = DeviceProps("queue", "host", _host().props.kind, caps=caps)
        super().__init__(backend, "", 0, props, torch.device("cpu"))
        self.default = self.current = QueueStream(0)
        self.streams = [self.default]

    def memory_info(self) -> tuple[int, int]:
        return 0, 0

    def current_stream(self) -> Stream:
        return self.current

    def set_stream(self, stream: Stream | None) -> None:
        self.current = stream if isinstance(stream, QueueStream) else self.default

    def new_stream(self) -> Stream:
        self.streams.append(QueueStream(len(self.streams)))
        return self.streams[-1]

    def new_event(self) -> Event:
        return QueueEvent()

    def synchronize(self) -> None:
        for stream in self.streams:
            stream.synchronize()


class QueueGraph(Graph):
    """Keeps what was enqueued in the block and enqueues it again."""

    def __init__(self, device: QueueDevice) -> None:
        self.device, self.work = device, list[Callable[[], object]]()

    def __enter__(self) -> Graph:
        self.outer, self.device.current.queue = self.device.current.queue, deque()
        return self

    def __exit__(self, *exc: object) -> None:
        self.work = list(self.device.current.queue)
        self.device.current.queue = self.outer

    def replay(self) -> None:
        self.device.current.queue.extend(self.work)


class GraphDevice(QueueDevice):
    """A queue device that can capture."""

    def graph(self, share: Graph | None = None) -> Graph:
        return QueueGraph(self)


class LoaderDevice(QueueDevice):
    """Fails to load with an error class of its own instead of the library's."""

    def load(self, image: Image) -> Any:
        raise KeyError(image.fmt)


class ForgetfulDevice(QueueDevice):
    """Loses the data of every copy to the host."""

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor, device="cpu")


def _host() -> Device:
    return discovery.load("cpu").open(0)


class Wrapped(Kernel):
    """The portable tier of `op`, changed by `before` (arguments) and `after` (results)."""

    priority, allocates = 1000, True

    def __init__(self, op: str, mutant: Mutant) -> None:
        self.op, self.name, self.mutant = op, f"mutant_{mutant.kind}", mutant
        self.inner = PortableKernel(get_spec(op))
        self.batch_invariant = mutant.claims_invariance
        self.state: dict[str, Any] = {}

    def supports(self, props: DeviceProps, call: Call) -> Support:
        return self.mutant.supports(self, call)

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[torch.Tensor | None, ...], workspace: Any
    ) -> Results | None:
        names = [param.name for param in self.inner.spec.params]
        named = dict(zip(names, args, strict=True))
        old = [None if tensor is None else tensor.clone() for tensor in out]
        changed = self.mutant.before(self, dict(named))
        results = self.inner.run(plan, stream, tuple(changed[name] for name in names), out, workspace)
        return self.mutant.after(self, results, named | {"_old": old}) or results


class Queued(Wrapped):
    """A kernel that enqueues; the mistake decides on which stream."""

    allocates = False

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[torch.Tensor | None, ...], workspace: Any
    ) -> Results | None:
        chosen = stream if self.mutant.kind != "wrong_stream" else self.mutant.device.default
        assert isinstance(chosen, QueueStream)
        if self.mutant.kind == "bakes_values":  # reads on the host what a graph will change later
            args = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in args)
        chosen.queue.append(lambda: self.inner.run(plan, stream, args, out, workspace))
        return None


class PerRequest(Wrapped):
    """Decodes each request in a call of its own, so its bits cannot depend on the batch until `after` spoils them."""

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[torch.Tensor | None, ...], workspace: Any
    ) -> Results | None:
        names = [param.name for param in self.inner.spec.params]
        named = dict(zip(names, args, strict=True))
        parts = []
        for row in range(named["q"].shape[0]):
            one = {key: named[key][row : row + 1] for key in ("q", "block_table", "seq_lens")}
            parts.append(self.inner.run(plan, stream, tuple((named | one)[name] for name in names), (None, None), None))
        if not parts:
            return self.inner.run(plan, stream, args, out, workspace)
        results = tuple(torch.cat(column) for column in zip(*parts, strict=True))
        return self.mutant.after(self, results, named) or results


def _yes(kernel: Wrapped, call: Call) -> Support:
    return YES


def _same_args(kernel: Wrapped, args: Named) -> Named:
    return args


def _same_results(kernel: Wrapped, results: Results, args: Named) -> Results | None:
    return None


@dataclass
class Mutant:
    """One mistake: `op` whose kernel has it ("" = not in a kernel), and the `level`/`check` that must catch it."""

    kind: str
    op: str
    check: str
    level: str = "L2"
    before: Callable[[Wrapped, Named], Named] = _same_args
    after: Callable[[Wrapped, Results, Named], Results | None] = _same_results
    supports: Callable[[Wrapped, Call], Support] = _yes
    claims_invariance: bool = False
    kernel: type[Wrapped] = Wrapped
    device_class: type[QueueDevice] | None = None
    caps: frozenset[Cap] = field(default_factory=lambda: _host().props.caps)
    backend: dict[str, Any] = field(default_factory=dict)
    device: Any = None
    case: str = ""  # only cases whose id holds this text: where a catch needs one of them, the others are left out


class MutantBackend(Backend):
    portable_is_native = True
    priority = -1

    def __init__(self, name: str, mutant: Mutant) -> None:
        self.name, self.mutant = name, mutant
        self._kernels = [mutant.kernel(mutant.op, mutant)] if mutant.op else []

    def probe(self, driver: str = "") -> Probe:
        return Probe(True, 1, ("a mutant",))

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        make = self.mutant.device_class or QueueDevice
        self.mutant.device = make(self.name, self.mutant.caps)
        return self.mutant.device

    def kernels(self) -> Sequence[Kernel]:
        return self._kernels


@contextlib.contextmanager
def opened(mutant: Mutant) -> Iterator[Target]:
    name = f"mutant_{next(_serial)}"
    backend = MutantBackend(name, mutant)
    register_backend(name, lambda: backend)
    try:
        target = suite.target(name)
        for attribute, value in mutant.backend.items():
            setattr(backend, attribute, value)
        yield target
    finally:
        unregister_backend(name)


def listed(target: Target, mutant: Mutant) -> list[Item]:
    ops = [mutant.op] if mutant.op else ["norm.rms_norm"]
    items = suite.collect(target, [mutant.level], ops)
    return [item for item in items if item.check == mutant.check and mutant.case in item.case]


def caught(target: Target, items: Sequence[Item]) -> Result | None:
    for item in items:
        result = suite.execute(item, target)
        if not result.ok:
            return result
    return None


def _past_the_end(kernel: Wrapped, results: Results, args: Named) -> None:
    """Writes one element behind the output, as a tile that is not cut off would."""
    y = results[0]
    room = y.untyped_storage().nbytes() // y.element_size() - y.storage_offset() - y.numel()
    if room > 0 and y.numel():
        y.as_strided((1,), (1,), y.storage_offset() + y.numel()).fill_(1.0)


def _outside(kernel: Wrapped, results: Results, args: Named) -> None:
    """Zeroes the rows past a group's count."""
    for group, rows in enumerate(args["counts"].tolist()):
        results[0][group, max(int(rows), 0) :] = 0


def _nan_for_zero_rows(kernel: Wrapped, results: Results, args: Named) -> None:
    """0/0 where a row holds no energy at all: only tiny shapes hit it."""
    if args["x"].shape[-1] == 1 and results[0].numel():
        results[0].view(-1)[0] = torch.nan


def _stale_workspace(kernel: Wrapped, results: Results, args: Named) -> None:
    """Adds what the previous call left behind."""
    left = kernel.state.get("left", 0.0)
    if results[0].numel():
        results[0].add_(left * 2.0**-3)
        kernel.state["left"] = float(results[0].flatten()[0]) or 1.0


def _writes_input(kernel: Wrapped, results: Results, args: Named) -> None:
    if args["x"].numel():
        args["x"].view(-1)[0] = 0 if float(args["x"].view(-1)[0]) else 1


def _nondeterministic(kernel: Wrapped, results: Results, args: Named) -> None:
    """One unit in the last place now and then, as unordered atomics would give."""
    kernel.state["calls"] = kernel.state.get("calls", 0) + 1
    if kernel.state["calls"] % 2 and results[0].numel():
        first = results[0].view(-1)[:1]
        first.view(torch.int16 if first.element_size() == 2 else torch.int32).add_(1)


def _lse_sign(kernel: Wrapped, results: Results, args: Named) -> None:
    results[1][results[1] == -torch.inf] = torch.inf


def _toward_zero(kernel: Wrapped, results: Results, args: Named) -> Results:
    """Truncates the payload to the next value toward zero where rounding went away from it."""
    data, scale = results
    if args["block"][0] != 1 or args["scale_dtype"] != "f32" or not data.numel():
        return results
    wide = scale.repeat_interleave(args["block"][1], -1)[..., : data.shape[-1]]
    exact = args["x"].float() / wide
    code = data.view(torch.uint8)
    too_far = (data.float().abs() > exact.abs()) & ((code & 0x7F) > 0)
    code.copy_(torch.where(too_far, code - 1, code))
    return results


def _drops_last_row(kernel: Wrapped, results: Results, args: Named) -> None:
    if results[0].ndim and results[0].shape[0]:
        results[0][-1].zero_()


def _reads_past_length(kernel: Wrapped, results: Results, args: Named) -> None:
    """Multiplies what lies past the length by zero instead of not reading it: right until it is NaN."""
    if args["format"] == "bf16" and args["kv_cache"].numel():
        results[0].add_((args["kv_cache"].float() * 0).sum().to(results[0].dtype))


def _depends_on_batch(kernel: Wrapped, results: Results, args: Named) -> None:
    if args["q"].shape[0] > 1 and results[0].numel():
        results[0].mul_(1 + 2.0**-6)


def _clamps_index(kernel: Wrapped, args: Named) -> Named:
    blocks = args["kv_cache"].shape[0]
    return args | {"block_table": args["block_table"].clamp(0, max(blocks - 1, 0))}


def _ignores_strides(kernel: Wrapped, args: Named) -> Named:
    x = args["x"]
    dense = torch.empty(x.shape).stride()
    return args | {"x": x.as_strided(x.shape, dense) if x.numel() else x}


def _accumulates(kernel: Wrapped, results: Results, args: Named) -> None:
    """Adds onto the old content times zero, as a kernel with beta = 0 that still reads C does."""
    if args["_old"][0] is not None:
        results[0].add_(args["_old"][0] * 0)


def _crashes_on_half(kernel: Wrapped, results: Results, args: Named) -> None:
    if args["x"].dtype is torch.float16:
        raise RuntimeError("no f16 instantiation")


def _slow_supports(kernel: Wrapped, call: Call) -> Support:
    time.sleep(2e-4)
    return YES


def _moody_supports(kernel: Wrapped, call: Call) -> Support:
    kernel.state["asked"] = kernel.state.get("asked", 0) + 1
    return YES if kernel.state["asked"] % 3 else Support.no("not now")


def _refuses_all(kernel: Wrapped, call: Call) -> Support:
    return Support.no("this device has no such unit")


def _raises_for_odd(kernel: Wrapped, call: Call) -> Support:
    if call["x"].shape[-1] % 2:
        raise ValueError("odd widths are not supported")
    return YES


def _raising_probe(driver: str = "") -> Probe:
    raise OSError("libaccelerator.so: cannot open shared object file")


def _slow_probe(driver: str = "") -> Probe:
    time.sleep(0.06)
    return Probe(True, 1)


CAPTURE = frozenset({Cap.BF16, Cap.FP16, Cap.ASYNC_STREAMS, Cap.GRAPHS})
ASYNC = frozenset({Cap.BF16, Cap.FP16, Cap.ASYNC_STREAMS})

def _same_buffer(kernel: Wrapped, results: Results, args: Named) -> Results:
    """Hands out one buffer again and again, as a kernel with a static result would."""
    found = kernel.state.setdefault(results[0].shape, torch.empty_like(results[0]))
    return (found.copy_(results[0]),)


def _input_as_result(kernel: Wrapped, results: Results, args: Named) -> Results | None:
    """Returns the input itself when there is nothing to do."""
    return (args["x"],) if torch.equal(args["x"], results[0]) else None


def _keeps_arguments(kernel: Wrapped, results: Results, args: Named) -> None:
    kernel.state["last"] = args


def _draws(kernel: Wrapped, results: Results, args: Named) -> None:
    torch.rand(1)


def _sets_threads(kernel: Wrapped, results: Results, args: Named) -> None:
    torch.set_num_threads(torch.get_num_threads() % 2 + 1)


def _remembers_by_address(kernel: Wrapped, args: Named) -> Named:
    """Keeps a prepared copy of the weight under its address and never looks again."""
    weight = args["weight"]
    return args | {"weight": kernel.state.setdefault((weight.data_ptr(), weight.shape), weight.clone())}


def _rounds_addresses(kernel: Wrapped, args: Named) -> Named:
    """Reads whole 16-byte units, from the one in which the tensor begins."""
    x = args["x"]
    off = x.data_ptr() % 16 // x.element_size()
    if not off or off > x.storage_offset() or not x.is_contiguous():
        return args
    return args | {"x": x.as_strided(x.shape, x.stride(), x.storage_offset() - off)}


class OneBufferDevice(QueueDevice):
    """An allocator that gives every tensor the same memory."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if not hasattr(self, "_memory"):
            self._memory = torch.empty(1 << 24, dtype=torch.uint8)
        count = math.prod(shape) * dtype.itemsize
        return self._memory[:count].view(dtype).view(tuple(shape))


class OneStreamDevice(QueueDevice):
    """Gives one stream to everybody who asks for a new one."""

    def new_stream(self) -> Stream:
        if not hasattr(self, "_only"):
            self._only = super().new_stream()
        return self._only


MUTANTS = [
    Mutant("off_by_one_write", NORM, "guards", after=_past_the_end),
    Mutant("writes_outside_valid", MASKED, "guards", after=_outside),
    Mutant("reads_old_output", NORM, "guards", after=_accumulates),
    Mutant("wrong_stream", NORM, "stream", kernel=Queued, caps=ASYNC),
    Mutant("bakes_values", NORM, "graph", kernel=Queued, caps=CAPTURE, device_class=GraphDevice),
    Mutant("lying_supports", NORM, "reference", after=_crashes_on_half),
    Mutant("silent_nan", NORM, "reference", after=_nan_for_zero_rows),
    Mutant("stale_workspace", NORM, "repeat", after=_stale_workspace),
    Mutant("input_modified", NORM, "inputs", after=_writes_input),
    Mutant("nondeterministic", NORM, "repeat", after=_nondeterministic),
    Mutant("lse_sign_of_empty_rows", DECODE, "reference", after=_lse_sign),
    Mutant("rounds_toward_zero", FP8, "reference", after=_toward_zero),
    Mutant("drops_last_row", NORM, "reference", after=_drops_last_row),
    Mutant("reads_past_length", DECODE, "poison", after=_reads_past_length),
    Mutant("false_batch_invariance", DECODE, "batch invariance", after=_depends_on_batch, claims_invariance=True,
           kernel=PerRequest),
    Mutant("index_clamped_not_ignored", DECODE, "reference", before=_clamps_index, case="note=foreign-blocks"),
    Mutant("ignores_strides", NORM, "layouts", before=_ignores_strides),
    Mutant("silent_fallback", NORM, "reference", supports=_refuses_all, backend={"portable_is_native": False}),
    Mutant("supports_raises", NORM, "reference", supports=_raises_for_odd),
    Mutant("slow_supports", NORM, "supports", "L0", supports=_slow_supports),
    Mutant("moody_supports", NORM, "supports", "L0", supports=_moody_supports),
    Mutant("probe_raises", "", "probe never raises", "L0", backend={"probe": _raising_probe}),
    Mutant("slow_probe", "", "probe is fast", "L0", backend={"probe": _slow_probe}),
    Mutant("bad_alias", "", "names", "L0", backend={"aliases": ("ascend",)}),
    Mutant("wrong_error_class", "", "bad image", "L1", device_class=LoaderDevice),
    Mutant("one_result_buffer", NORM, "repeat", after=_same_buffer),
    Mutant("input_as_result", NORM, "inputs", after=_input_as_result),
    Mutant("keeps_arguments", NORM, "inputs", after=_keeps_arguments),
    Mutant("draws_global_numbers", NORM, "repeat", after=_draws),
    Mutant("sets_threads", NORM, "repeat", after=_sets_threads),
    Mutant("remembers_by_address", NORM, "rewritten", before=_remembers_by_address),
    Mutant("rounds_addresses", NORM, "layouts", before=_rounds_addresses),
    Mutant("one_allocation", "", "allocation", "L1", device_class=OneBufferDevice),
    Mutant("one_stream", "", "streams", "L1", device_class=OneStreamDevice),
    Mutant("copies_lose_data", "", "round trip", "L1", device_class=ForgetfulDevice),
]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """One mutant changes their number."""
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.kind)
def test_mutant_is_caught(mutant: Mutant) -> None:
    with opened(mutant) as target:
        items = listed(target, mutant)
        assert items, f"no item of check {mutant.check!r} is listed for {mutant.op}"
        found = caught(target, items)
    assert found is not None, f"{mutant.kind} passed {len(items)} items of check {mutant.check!r}"


CONTROLS = sorted({(mutant.op, mutant.level, mutant.check) for mutant in MUTANTS if mutant.op})


@pytest.mark.parametrize(("op", "level", "check"), CONTROLS, ids=lambda value: value.replace(" ", "_"))
def test_unbroken_wrapping_passes(op: str, level: str, check: str) -> None:
    control = Mutant("control", op, check, level)
    if check == "batch invariance":
        control.claims_invariance, control.kernel = True, PerRequest
    if check == "stream":
        control.kernel, control.caps = Queued, ASYNC
    if check == "graph":
        control.kernel, control.caps, control.device_class = Queued, CAPTURE, GraphDevice
    with opened(control) as target:
        items = listed(target, control)[:40]
        assert items
        found = caught(target, items)
    assert found is None, f"{found}"


def test_enough_kinds() -> None:
    assert len({mutant.kind for mutant in MUTANTS}) == len(MUTANTS) >= 12


def test_profile_of_a_mutant_is_strict() -> None:
    """An expected failure that is listed turns the catch into `expected_failure`; listing a passing check fails."""
    from deepinfer.conformance.profile import Entry

    mutant = Mutant("drops_last_row", NORM, "reference", after=_drops_last_row)
    entry = Entry("expected_failure", "the last row is dropped on purpose", op=NORM, check="reference")
    with opened(mutant) as target:
        listed_target = replace(target, profile=Profile((entry,)))
        outcomes = {suite.execute(item, listed_target).outcome for item in listed(listed_target, mutant)}
    # The cases without a row to drop pass, which the strict listing reports as failures.
    assert outcomes == {"expected_failure", "failed"}
