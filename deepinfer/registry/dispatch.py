"""From an op call to a kernel run: validate once per distinct metadata, resolve once, then go straight to the kernel.

Invariants: the cache key holds everything `check`, `supports` and `plan` may look at (shapes, dtypes, strides,
devices, alignment, plain values), so a hit needs no validation; caches belong to the device and are bounded.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.errors import BackendUnavailable, InvalidArgument, OutOfMemory, UnsupportedError, invalid
from deepinfer.hal.current import current_device
from deepinfer.hal.device import Device
from deepinfer.hal.scoped import Scoped
from deepinfer.hal.types import Support
from deepinfer.registry import aliasing, ambient, bound, fallback, tracing
from deepinfer.registry.call import Call, Kind, TensorMeta
from deepinfer.registry.kernel import Kernel, Plan
from deepinfer.registry.kernels import cache_name, candidates
from deepinfer.registry.spec import OpSpec

CACHE_LIMIT = 8192
FLOAT32_MAX = 3.4028234663852886e38
_Tensor = torch.Tensor
_capture: Scoped[bool] = Scoped("deepinfer_capture", False)


class CapturedCall(BaseException):
    """Control flow of `explain`: carries the first op call a public function makes, instead of running it."""

    def __init__(self, op: str, args: tuple[Any, ...]) -> None:
        super().__init__(op)
        self.op, self.call_args = op, args


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Inside the block every op call raises `CapturedCall` instead of running (this context only)."""
    with _capture.using(True):
        yield


@dataclass(frozen=True)
class Resolved:
    """What a dispatch key resolves to."""

    kernel: Kernel
    plan: Plan
    outputs: tuple[TensorMeta, ...]
    is_fallback: bool
    reasons: tuple[str, ...]
    extents: aliasing.Extents


class Op:
    """The callable form of an OpSpec in canonical (flat, positional) arguments.

    Public functions in `deepinfer.ops` convert their arguments and call this.
    """

    def __init__(self, spec: OpSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.torch_name = spec.name.replace(".", "_")
        self._none = (None,) * len(spec.returns)
        self._in_place = any(param.mutated for param in spec.params)
        self._written = (*(param.name for param in spec.params if param.mutated), "out")

    def __call__(
        self, *args: Any, out: tuple[torch.Tensor | None, ...] | None = None, validate: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """Run on the current device. Returns the outputs in the order of `spec.returns`.

        Raises:
            InvalidArgument: the arguments break the op's contract (nothing was launched).
            UnsupportedError: no kernel takes the call and the fallback policy is "error".
            OutOfMemory: the device cannot hold the results or the workspace.
        """
        if tracing.active():
            return tracing.call(self.torch_name, args, out)
        if _capture.get():
            raise CapturedCall(self.name, args)
        device = current_device()
        if ambient.disturbs(device.torch_device):
            with ambient.plain(device.torch_device):
                return self(*args, out=out, validate=validate)
        outs, key = self._none if out is None else out, None
        if not validate and (out is not None or not outs):
            key = bound.address_key(args, outs)
            launch = None if key is None else bound.find(device, cache_name(device, self.name), key)
            if launch is not None:
                launch(device.current_stream())
                return outs  # type: ignore[return-value]  # the key holds tensors only
        entry = self.resolve(device, args, outs)
        if validate:
            self.spec.check_values(dict(zip((p.name for p in self.spec.params), args, strict=True)))
        if out is not None or self._in_place:
            aliasing.check_call(self.spec, entry.extents, args, outs)
        if entry.is_fallback:
            self._note_fallback(device, entry)
        if key is not None and self._bind(device, entry, args, outs, key):
            return outs  # type: ignore[return-value]
        try:
            if torch.is_grad_enabled() and _records(entry, args, outs):
                with torch.no_grad():  # there is no backward pass; results must not keep the inputs alive
                    return _run(device, entry, args, outs)
            return _run(device, entry, args, outs)
        except (RuntimeError, MemoryError) as error:
            if out_of_memory(error):
                raise OutOfMemory(f"{self.name}: {entry.kernel.name} on {device.spec}: {error}") from error
            if "inference tensor" in str(error):
                rule = "a tensor to write was made in torch.inference_mode() and can only be written there; .clone() it"
                raise InvalidArgument(f"{self.name}: {', '.join(self._written)}: {rule}") from error
            raise

    def _bind(
        self, device: Device, entry: Resolved, args: tuple[Any, ...], outs: tuple[Any, ...], key: tuple[Any, ...]
    ) -> bool:
        """Whether the kernel could bind the call: then it was enqueued and is remembered."""
        if entry.plan.workspace or entry.kernel.allocates:
            return False
        launch = entry.kernel.bind(entry.plan, args, outs)
        if launch is None:
            return False
        launch(device.current_stream())
        bound.remember(device, cache_name(device, self.name), key, launch)
        return True

    def resolve(
        self, device: Device, args: tuple[Any, ...], out: tuple[torch.Tensor | None, ...] | None = None
    ) -> Resolved:
        """The kernel, plan and output metadata for these arguments (cached)."""
        outs = self._none if out is None else out
        name = cache_name(device, self.name)
        try:
            cache = device.dispatch_cache[name]
        except KeyError:
            cache = device.dispatch_cache.setdefault(name, {})
        try:
            key = dispatch_key(args, outs)
            found = cache.get(key)
        except (TypeError, AttributeError, RuntimeError, ValueError):  # no tensor, no memory: let validation word it
            key, found = None, None
        if found is None:
            found = self._resolve(device, args, outs)
            if key is not None:
                if len(cache) >= CACHE_LIMIT:
                    cache.clear()
                cache[key] = found
        return found

    def _resolve(self, device: Device, args: tuple[Any, ...], out: tuple[torch.Tensor | None, ...]) -> Resolved:
        if device.closed:
            reason = f"it was closed; deepinfer.device({device.spec!r}) opens it anew"
            raise BackendUnavailable(f"device {device.spec} cannot be used", [reason])
        call = make_call(self.spec, args, out, device.torch_device)
        self.spec.check(call)
        outputs = self.spec.outputs(call)
        _check_out(self.spec, outputs, call.out)
        _check_memory(self.spec, call, outputs, device)
        aliasing.check_written(self.spec, call)
        kernel, reasons, is_fallback = choose(device, call)
        extents = aliasing.Extents.of(self.spec, call)
        return Resolved(kernel, kernel.plan(device, call), outputs, is_fallback, reasons, extents)

    def _note_fallback(self, device: Device, entry: Resolved) -> None:
        if fallback.policy.get() == "error":
            raise UnsupportedError(f"{device.spec} has no kernel for this call of {self.name}", entry.reasons)
        fallback.note(device, self.name, entry.reasons)


def _records(entry: Resolved, args: Sequence[Any], outs: Sequence[torch.Tensor | None]) -> bool:
    """Whether torch would record this call for gradients."""
    for at, _ in entry.extents.arguments:
        if args[at].requires_grad:
            return True
    return any(tensor is not None and tensor.requires_grad for tensor in outs)


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocator failed; torch's host allocator has no error class of its own."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def dispatch_key(args: Sequence[Any], out: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    """Everything about a call that may decide which kernel runs it."""
    parts: list[Any] = []
    for a in args:
        if isinstance(a, _Tensor):
            parts += (a.__class__, a.shape, a.dtype, a.stride(), a.device, a.data_ptr() & 15, a.is_neg())
        else:
            parts += (a.__class__, a)
    for o in out:
        if o is None:
            parts.append(None)
        else:
            parts += (o.__class__, o.shape, o.dtype, o.stride(), o.device, o.data_ptr() & 15, o.is_neg())
    return tuple(parts)


def _run(
    device: Device, entry: Resolved, args: tuple[Any, ...], out: tuple[torch.Tensor | None, ...]
) -> tuple[torch.Tensor, ...]:
    kernel, plan = entry.kernel, entry.plan
    stream = device.current_stream()
    workspace = device.empty((plan.workspace,), torch.uint8) if plan.workspace else None
    if kernel.allocates:
        result = kernel.run(plan, stream, args, out, workspace)
        if result is None:
            raise UnsupportedError(f"{kernel!r} says it allocates but returned nothing")
        return result
    outs = tuple(
        given if given is not None else torch.empty(meta.shape, dtype=meta.dtype, device=meta.device)
        for given, meta in zip(out, entry.outputs, strict=True)
    )
    kernel.run(plan, stream, args, outs, workspace)
    return outs


def make_call(
    spec: OpSpec, args: Sequence[Any], out: Sequence[torch.Tensor | None], device: torch.device, fake: bool = False
) -> Call:
    """Build the `Call`, checking each argument's type and device; `fake` takes tensors without memory too."""
    if len(args) != len(spec.params):
        raise InvalidArgument(f"{spec.name}: got {len(args)} arguments, must be {len(spec.params)}")
    values: dict[str, Any] = {}
    for param, value in zip(spec.params, args, strict=True):
        values[param.name] = _meta(spec.name, param.name, param.kind, value, device, fake)
    if not isinstance(out, tuple | list) or len(out) != len(spec.returns):
        shown = f"{len(out)} entries" if isinstance(out, tuple | list) else type(out).__name__
        rule = f"must be a tuple of {len(spec.returns)} tensors ({', '.join(spec.returns)})"
        raise invalid(f"{spec.name}: out", shown, rule)
    metas = tuple(
        _meta(spec.name, f"out[{name}]", Kind.TENSOR, tensor, device, fake)
        for name, tensor in zip(spec.returns, out, strict=True)
        if tensor is not None
    )
    given = metas if len(metas) == len(spec.returns) else None
    if metas and given is None:
        raise InvalidArgument(f"{spec.name}: out: got {len(metas)} tensors, must be all {len(spec.returns)} or none")
    return Call(spec.name, values, device, given)


_PLAIN: dict[Kind, tuple[type, ...]] = {
    Kind.INT: (int,), Kind.FLOAT: (float, int), Kind.BOOL: (bool,), Kind.STR: (str,), Kind.DTYPE: (torch.dtype,),
    Kind.OPT_INT: (int, type(None)), Kind.OPT_FLOAT: (float, int, type(None)), Kind.OPT_STR: (str, type(None)),
    Kind.OPT_DTYPE: (torch.dtype, type(None)), Kind.INTS: (tuple,),
}


def _meta(op: str, name: str, kind: Kind, value: Any, device: torch.device, fake: bool) -> Any:
    if kind.is_tensor:
        if value is None and kind is Kind.OPT_TENSOR:
            return None
        if not isinstance(value, torch.Tensor):
            raise invalid(f"{op}: {name}", value, "must be a torch.Tensor")
        if torch.nn.parameter.is_lazy(value):
            raise invalid(f"{op}: {name}", f"an {type(value).__name__}", "must have a shape; run its module first")
        if value.layout is not torch.strided or value.is_nested or value.is_quantized:
            raise invalid(f"{op}: {name}", _kind_of(value), "must be a dense tensor; pass .to_dense()")
        if value.is_neg():  # kernels read memory, where the sign is not yet changed
            raise invalid(f"{op}: {name}", "a lazily negated view", "must hold its values; pass .resolve_neg()")
        if not _same_device(value.device, device):
            raise invalid(
                f"{op}: {name}", str(value.device), "must lie on the current device's memory", nearest=str(device)
            )
        if not fake and not _has_memory(value):
            rule = "must have memory of its own; call the op on plain tensors, outside torch.func transforms"
            raise invalid(f"{op}: {name}", f"a {type(value).__name__} of a tracer, transform or subclass", rule)
        return TensorMeta.of(value)
    allowed = _PLAIN[kind]
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        wanted = " or ".join("None" if t is type(None) else t.__name__ for t in allowed)
        raise invalid(f"{op}: {name}", value, f"must be {wanted}")
    for number in tuple(value) if isinstance(value, tuple) else (value,):
        _check_number(f"{op}: {name}", number, whole=kind is Kind.INTS)
    return value


def _has_memory(tensor: torch.Tensor) -> bool:
    """False for what kernels cannot read: FakeTensor and other classes that run torch code of their own, and the
    wrappers of vmap and grad."""
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:
        return False
    return True


def _check_number(name: str, value: Any, whole: bool) -> None:
    """Numbers must fit what kernels take: int64 and float32."""
    if whole and (isinstance(value, bool) or not isinstance(value, int)):
        raise invalid(name, value, "must hold integers")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise invalid(name, value, "must fit 64 bits")
    if isinstance(value, float) and math.isfinite(value) and abs(value) > FLOAT32_MAX:
        raise invalid(name, value, "must fit float32", nearest=math.copysign(FLOAT32_MAX, value))


def _kind_of(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "a nested tensor"
    return f"a quantized tensor ({tensor.dtype})" if tensor.is_quantized else str(tensor.layout)


def _same_device(actual: torch.device, wanted: torch.device) -> bool:
    return actual.type == wanted.type and (actual.index or 0) == (wanted.index or 0)


def _check_out(spec: OpSpec, outputs: Sequence[TensorMeta], given: Sequence[TensorMeta] | None) -> None:
    for name, want, got in zip(spec.returns, outputs, given or (), strict=bool(given)):
        if got.shape != want.shape or got.dtype != want.dtype:
            rule = f"must be {want.dtype} {list(want.shape)}"
            raise invalid(f"{spec.name}: out[{name}]", f"{got.dtype} {list(got.shape)}", rule)


def _check_memory(spec: OpSpec, call: Call, outputs: Sequence[TensorMeta], device: Device) -> None:
    """Tensors larger than the device (expanded views, absurd sizes) are refused before anything is computed."""
    total = device.memory_info()[1] or 1 << 62
    metas = [*call.args.items(), *zip(spec.returns, outputs, strict=True)]
    for name, meta in metas:
        if isinstance(meta, TensorMeta) and meta.nbytes > total:
            rule = f"describes {meta.nbytes} bytes, more than the memory of {device.spec} ({total})"
            raise invalid(f"{spec.name}: {name}", list(meta.shape), rule)


def choose(device: Device, call: Call) -> tuple[Kernel, tuple[str, ...], bool]:
    """The first supporting kernel, why those before it refused, and whether it is a fallback."""
    reasons: list[str] = []
    for kernel in candidates(device, call.op):
        support = kernel.supports(device.props, call)
        if support:
            if kernel.is_fallback and not reasons:
                reasons.append(f"backend {device.backend!r} declares no kernel for {call.op}")
            return kernel.kernel, tuple(reasons), kernel.is_fallback
        reasons += (f"{kernel.name}: {reason}" for reason in support.reasons)
    raise UnsupportedError(f"{device.spec} has no kernel for {call.op}", reasons)


def why(device: Device, call: Call) -> list[tuple[str, Support, bool]]:
    """(name, support, is fallback) of every candidate, for `explain`."""
    return [(k.name, k.supports(device.props, call), k.is_fallback) for k in candidates(device, call.op)]
