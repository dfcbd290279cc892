"""Base class of the kernels in this package, and the declarative form of their launches.

A kernel states its launches as `Program`s: device function, grid, which of the op's tensors it takes, numbers and
compile-time constants. Signature, divisibility, compilation, loading and the parameter block follow from that.
Invariants: arguments of device functions are named after the op's parameters and results; a plan without programs is an
empty call, which runs nothing.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch

from deepinfer.hal import Arg, Device, DeviceProps, Stream, Support
from deepinfer.registry import Call, Kernel, Plan, TensorMeta, get_spec
from deepinfer.registry.prepared import PreparedLaunches
from deepinfer_triton.code import TYPES, TritonCode, load, number, pointer
from deepinfer_triton.compile import ARCHITECTURES, TritonBuild

GRID_LIMIT = 2**31 - 1  # blocks along x; kernels use no other dimension
Number = int | float
# Strides that are compiled in when they are 1: only then does the compiler know that neighbours are neighbours.
UNIT_STRIDES = frozenset({"sc", "tc", "row_column", "expert_step", "bias_step", "index_lane"})

# Numbers that only bound loops and rows, or lead to single values: whether they are multiples of 16 changes no access,
# so it does not split kernels.
UNALIGNED = frozenset({
    "rows", "lines", "tokens", "count", "capacity", "limit", "total", "items", "alignment", "room", "tokens_total",
    "per", "masks", "heads", "grid_rows", "repeat", "index_step", "weight_step", "lse_state", "lse_lead", "lse_token",
    "lse_head", "lanes", "slot_step", "map_step", "page",
})
VECTOR = 16  # what the compiler must know strides to be multiples of, or its accesses stay narrow

@lru_cache(maxsize=1)
def _compiler_installed() -> bool:
    return find_spec("triton") is not None


@dataclass(frozen=True)
class Program:
    """One launch.

    Attributes:
        function: name of the device function, "module.function" below `deepinfer_triton.device`.
        grid: programs along x.
        tensors: names of the op's parameters and results that are pointer arguments; absent ones become None.
        numbers: scalar arguments; integers are 32-bit where they fit.
        constants: `tl.constexpr` arguments.
        warps: warps per program.
        fuse: whether a product may be fused with the sum that takes it (one rounding instead of two).
        general: nothing about strides is compiled in. For layouts that allow no wide access, where a kernel of their
            own would be no faster: one form serves all of them.
    """

    function: str
    grid: int
    tensors: tuple[str, ...]
    numbers: Mapping[str, Number] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    warps: int = 4
    fuse: bool = True
    general: bool = False


@dataclass(frozen=True)
class Loaded:
    """A program ready for launches; tensors are known by number: argument i as i, result j as -1 - j."""

    code: TritonCode
    grid: int
    order: tuple[tuple[int, bool] | Arg, ...]
    sources: tuple[int, ...]
    launches: PreparedLaunches

    def run(self, stream: Stream, args: Sequence[Any], out: Sequence[Any]) -> None:
        self.bind(args, out)(stream)

    def bind(self, args: Sequence[Any], out: Sequence[Any]) -> Callable[[Stream], None]:
        """The launch for these tensors' addresses."""
        found = [args[i] if i >= 0 else out[-1 - i] for i in self.sources]
        return self.launches.get(found, lambda: self._prepare(args, out))

    def _prepare(self, args: Sequence[Any], out: Sequence[Any]) -> Callable[[Stream], None]:
        made: list[Arg] = []
        for entry in self.order:
            if isinstance(entry, Arg):
                made.append(entry)
            else:
                index, writable = entry
                made.append(pointer(args[index] if index >= 0 else out[-1 - index], writable))
        return self.code.prepare((self.grid, 1, 1), made)


class TritonKernel(Kernel):
    """A small op in Triton. Subclasses say what they refuse and which programs a call takes."""

    priority = 5

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = self.refuse(call)
        if props.arch not in ARCHITECTURES:
            reasons.append(f"Triton compiles for {', '.join(ARCHITECTURES)} here, the device is {props.arch}")
        if not _compiler_installed():
            reasons.append("triton is not installed (pip install 'deepinfer-cuda[triton]')")
        return Support(tuple(reasons))

    def refuse(self, call: Call) -> list[str]:
        """Why the call's shapes, dtypes or strides do not fit; empty = they do."""
        return []

    @abc.abstractmethod
    def programs(self, call: Call) -> Sequence[Program]:
        """The launches of a call that `refuse` accepts, in order; none for an empty call."""

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=tuple(prepare(device, call, program) for program in self.programs(call) if program.grid))

    def run(
        self,
        plan: Plan,
        stream: Stream,
        args: tuple[Any, ...],
        out: tuple[torch.Tensor | None, ...],
        workspace: torch.Tensor | None,
    ) -> None:
        for program in plan.state:
            program.run(stream, args, out)

    def bind(
        self, plan: Plan, args: tuple[Any, ...], out: tuple[torch.Tensor, ...]
    ) -> Callable[[Stream], None]:
        launches: list[Callable[[Stream], None]] = [program.bind(args, out) for program in plan.state]
        if len(launches) == 1:
            return launches[0]

        def enqueue(stream: Stream) -> None:
            for launch in launches:
                launch(stream)

        return enqueue


def specialise(call: Call, program: Program) -> TritonBuild:
    """What is compiled for `program`: types and divisibility follow from the call's metadata."""
    module, _, name = program.function.partition(".")
    function = getattr(__import__(f"deepinfer_triton.device.{module}", fromlist=[name]), name)
    constants = dict(program.constants)
    signature: list[tuple[str, str]] = []
    divisible: set[str] = set()
    for tensor in program.tensors:
        meta = meta_of(call, tensor)
        if meta is None:
            constants[tensor] = None
            continue
        signature.append((tensor, TYPES[meta.dtype]))
        if meta.aligned and not program.general:
            divisible.add(tensor)
    for label, value in program.numbers.items():
        if label in UNIT_STRIDES and value == 1 and not program.general:
            constants[label] = 1
            continue
        signature.append((label, number(value)[0]))
        known = not program.general and label not in UNALIGNED
        if known and isinstance(value, int) and value % VECTOR == 0:
            divisible.add(label)
    order = tuple(sorted(constants.items()))
    return TritonBuild(function, tuple(signature), order, frozenset(divisible), program.warps, fuse=program.fuse)


def prepare(device: Device, call: Call, program: Program) -> Loaded:
    """Compile and load `program` for `device`."""
    build = specialise(call, program)
    spec = get_spec(call.op)
    sources = {param.name: (index, param.mutated) for index, param in enumerate(spec.params)}
    sources |= {name: (-1 - index, True) for index, name in enumerate(spec.returns)}
    known: dict[str, tuple[int, bool] | Arg] = {name: sources[name] for name in program.tensors}
    known |= {name: number(value)[1] for name, value in program.numbers.items()}
    absent = dict(build.constants)
    order = tuple(known[name] for name in build.function.arg_names if name not in absent)
    used = tuple(sources[name][0] for name in program.tensors if name not in absent)
    return Loaded(load(device, build), program.grid, order, used, PreparedLaunches())


def meta_of(call: Call, name: str) -> TensorMeta | None:
    """Metadata of a parameter or result of the call; None for an absent optional tensor."""
    if name in call.args:
        found: TensorMeta | None = call[name]
        return found
    return result_meta(call, name)


def result_meta(call: Call, name: str) -> TensorMeta:
    """Metadata of a result of the call: the caller's tensor, or what the dispatcher allocates."""
    spec = get_spec(call.op)
    index = spec.returns.index(name)
    return call.out[index] if call.out else spec.outputs(call)[index]


def dense_outputs(call: Call) -> list[str]:
    """A reason when the caller's results are not contiguous."""
    if all(meta.contiguous for meta in call.out or ()):
        return []
    return ["writes contiguous results only"]


def dense_inputs(call: Call, *names: str) -> list[str]:
    """A reason per named input that is present and not contiguous."""
    found = [(name, call[name]) for name in names]
    return [f"{name} must be contiguous, got strides {m.stride}" for name, m in found if m and not m.contiguous]


def grid_reason(programs: int) -> list[str]:
    return [] if programs <= GRID_LIMIT else [f"needs {programs} programs, at most {GRID_LIMIT} can be launched"]


def run(dtype: torch.dtype) -> int:
    """Values of `dtype` in the widest vector of a load or store, which has 16 bytes."""
    return 16 // dtype.itemsize


def wide(*steps: int) -> bool:
    """Whether all strides and sizes allow vectors."""
    return not any(step % VECTOR for step in steps)


def next_power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def collapse(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, int] | None:
    """(size, stride) of several dimensions walked as one, or None when their strides do not allow it."""
    sized = [(size, step) for size, step in zip(shape, stride, strict=True) if size != 1]
    if not sized:
        return 1, 0
    total, step = 1, sized[-1][1]
    for size, outer in reversed(sized):
        if outer != step * total:
            return None
        total *= size
    return total, step


def rows_view(meta: TensorMeta) -> tuple[int, int] | None:
    """(rows, row stride) when the leading dimensions collapse to one with unit stride inside rows, else None."""
    if meta.ndim == 0 or (meta.shape[-1] > 1 and meta.stride[-1] != 1):
        return None
    return collapse(meta.shape[:-1], meta.stride[:-1])


def rows_reason(name: str, meta: TensorMeta) -> list[str]:
    """A reason when `rows_view` has no answer."""
    if meta.numel == 0 or rows_view(meta) is not None:
        return []
    return [f"{name} needs rows with one stride and unit stride inside, got {meta.shape} with {meta.stride}"]
