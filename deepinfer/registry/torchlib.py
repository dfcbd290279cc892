"""torch.library registration of every op, so that torch.compile and torch.export see them.

`torch.ops.deepinfer.<family>_<op>(device, *canonical args)` runs the op on the DeepInfer device named by `device`, a
constant captured at trace time (several backends share torch's "cpu"). Eager calls of the public functions bypass it;
under a tracer they become it (`deepinfer.registry.tracing`).
Invariant: schema and fake implementation are derived from the OpSpec; nothing is stated twice.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from deepinfer.hal.current import device as open_device
from deepinfer.hal.current import use_backend
from deepinfer.registry import tracing
from deepinfer.registry.call import Kind
from deepinfer.registry.dispatch import Op, make_call
from deepinfer.registry.spec import OpSpec
from deepinfer.registry.specs import all_specs, get_spec

NAMESPACE = "deepinfer"
_lock = threading.Lock()
_library: list[torch.library.Library] = []


def op_name(spec: OpSpec) -> str:
    """Name inside the torch namespace: "flash_mla.decode" -> "flash_mla_decode"."""
    return spec.name.replace(".", "_")


def schema(spec: OpSpec) -> str:
    """torch.library schema of a spec; mutated tensors carry alias annotations."""
    parts = ["str device"]
    for index, param in enumerate(spec.params):
        kind = param.kind.value
        if param.mutated:
            kind = kind.replace("Tensor", f"Tensor(a{index}!)")
        parts.append(f"{kind} {param.name}")
    returns = ", ".join(["Tensor"] * len(spec.returns))
    return f"{op_name(spec)}({', '.join(parts)}) -> ({returns})"


def _implementation(spec: OpSpec) -> Any:
    op = Op(spec)
    ints = [index for index, param in enumerate(spec.params) if param.kind is Kind.INTS]

    def run(device: str, *args: Any) -> Any:
        values = list(args)
        for index in ints:
            values[index] = tuple(values[index])
        with use_backend(device):
            return _as_result(op(*values))

    return run


def _fake(spec: OpSpec) -> Any:
    def fake(device: str, *args: Any) -> Any:
        target = open_device(device)
        call = make_call(spec, _tuples(spec, args), (None,) * len(spec.returns), target.torch_device, fake=True)
        spec.check(call)
        return _as_result(
            tuple(torch.empty(meta.shape, dtype=meta.dtype, device=meta.device) for meta in spec.outputs(call))
        )

    return fake


def _tuples(spec: OpSpec, args: tuple[Any, ...]) -> list[Any]:
    return [tuple(v) if p.kind is Kind.INTS else v for p, v in zip(spec.params, args, strict=True)]


def _as_result(outputs: tuple[torch.Tensor, ...]) -> Any:
    if not outputs:
        return None
    return outputs[0] if len(outputs) == 1 else outputs


def register_all() -> list[str]:
    """Register every op once per process; returns the qualified names ("deepinfer::norm_rms_norm", ...)."""
    with _lock:
        if not _library:
            library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]  # torch's own gap
            for spec in all_specs():
                library.define(schema(spec))  # type: ignore[no-untyped-call]
                library.impl(  # type: ignore[no-untyped-call]
                    op_name(spec), _implementation(spec), "CompositeExplicitAutograd"
                )
                torch.library.register_fake(f"{NAMESPACE}::{op_name(spec)}", _fake(spec), lib=library)
            _library.append(library)
    return [f"{NAMESPACE}::{op_name(spec)}" for spec in all_specs()]


def call(op: str, *args: Any) -> Any:
    """The torch.library form of op `op` on the device that is current now (usable under torch.compile)."""
    if not torch.compiler.is_compiling():
        get_spec(op)  # names the ops there are
    return _as_result(tracing.call(op.replace(".", "_"), args, None))
