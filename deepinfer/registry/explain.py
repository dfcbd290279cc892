"""`deepinfer.explain`: every candidate kernel of a call on the current device, with why or why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer.hal.current import current_device
from deepinfer.hal.device import Device
from deepinfer.hal.types import Support
from deepinfer.registry.dispatch import make_call, why
from deepinfer.registry.specs import get_spec


@dataclass(frozen=True)
class Verdict:
    """One candidate: taken, able but behind the one taken, or refused with reasons."""

    kernel: str
    support: Support
    is_fallback: bool
    taken: bool


@dataclass(frozen=True)
class Explanation:
    """Result of `explain`; `str()` gives the printable form."""

    op: str
    device: str
    verdicts: tuple[Verdict, ...]

    def __str__(self) -> str:
        lines = [f"{self.op} on {self.device}"]
        for verdict in self.verdicts:
            mark = "->" if verdict.taken else "  "
            kind = " (fallback)" if verdict.is_fallback else ""
            text = "supports the call" if verdict.support else "; ".join(verdict.support.reasons)
            lines.append(f"{mark} {verdict.kernel}{kind}: {text}")
        return "\n".join(lines)


def explain_call(op: str, args: Sequence[Any], device: Device | None = None) -> Explanation:
    """Explain the call of `op` with canonical arguments `args` (raises InvalidArgument like the op itself would)."""
    target = device or current_device()
    spec = get_spec(op)
    call = make_call(spec, args, (None,) * len(spec.returns), target.torch_device)
    spec.check(call)
    found = why(target, call)
    taken = next((i for i, (_, support, _f) in enumerate(found) if support), -1)
    verdicts = tuple(Verdict(name, support, fb, i == taken) for i, (name, support, fb) in enumerate(found))
    return Explanation(op, target.spec, verdicts)
