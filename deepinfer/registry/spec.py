"""OpSpec: the single statement of what an op means. Schema, validation, reference, portable form, cases, cost.

Three tiers hang off a spec: the **reference** (float64 or integer torch, written to be read, used by tests only), the
**portable** version (plain torch in the op's own dtypes, any torch device, memory-bounded) and the **native** kernels
of backends. The spec's docstring is the op's documentation; docs/ops.md is generated from it.

Invariants: `check`, `outputs` and `cost` look at metadata only; `check_values` may read data and runs only when the
caller passes validate=True; `reference` and `portable` never modify inputs except parameters marked `mutated`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from deepinfer.registry.call import Call, Cost, Param, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Callable

Args = Mapping[str, Any]
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Tolerance:
    """An element passes if |a-b| < `abs` or |a-b|/(|b|+1e-6) < `rel`; all together 1-2*sum(ab)/sum(a^2+b^2) <= `cos`.

    `exact` asks for equal bits instead. Infinities and NaNs must stand at the same places in any case.
    """

    abs: float = 0.0
    rel: float = 0.0
    cos: float = 1.0
    exact: bool = False


EXACT = Tolerance(exact=True)


@dataclass(frozen=True)
class Case:
    """One input of an op: named parameters, and `make(generator)` which builds the canonical arguments on the CPU.

    `tags`: "quick" (every run), "full" (long tier), "bench" (timed), "edge" (an edge rule), "profile:NAME".
    `refs`: public bug reports that this case pins down (C01...), listed in docs/reports.md.
    """

    op: str
    params: Mapping[str, Any]
    make: Callable[[torch.Generator], dict[str, Any]] = field(compare=False, repr=False)
    tags: frozenset[str] = frozenset({"quick"})
    seed: int = 0
    refs: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.params.items())

    def build(self) -> dict[str, Any]:
        """The canonical arguments, deterministic in `seed`."""
        return self.make(torch.Generator().manual_seed(self.seed))


@dataclass(frozen=True)
class ErrorCase:
    """A call that must raise `error` with every text of `mentions` in the message. `make` as in `Case`."""

    op: str
    name: str
    make: Callable[[torch.Generator], dict[str, Any]] = field(compare=False, repr=False)
    error: type[Exception]
    mentions: tuple[str, ...] = ()
    validate: bool = False


class OpSpec(abc.ABC):
    """Base of all op specifications. `name` is "family.op"; `params` are the canonical (flat) arguments in order.

    `in_place`: pairs (result, parameter) for which the caller may give the parameter's very tensor as `out`.
    `host_batch_invariant`: the portable version claims batch invariance on a backend whose kernels it is made for.
    """

    name: ClassVar[str]
    params: ClassVar[tuple[Param, ...]]
    returns: ClassVar[tuple[str, ...]]
    in_place: ClassVar[tuple[tuple[str, str], ...]] = ()
    host_batch_invariant: ClassVar[bool] = False

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @abc.abstractmethod
    def check(self, call: Call) -> None:
        """Raise InvalidArgument when the metadata breaks the contract."""

    def check_values(self, args: Args) -> None:
        """Raise InvalidArgument when values on the device (lengths, indices, scales) are out of range."""

    @abc.abstractmethod
    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        """Metadata of the results, in the order of `returns`."""

    @abc.abstractmethod
    def reference(self, args: Args) -> Tensors:
        """float64 (or exact integer/byte) results. May return CPU tensors of wider dtypes than the op's."""

    @abc.abstractmethod
    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        """Results in the op's dtypes on the inputs' device.

        `out[i]` is the caller's tensor for result i, or None: then allocate. With a caller's tensor, write into it
        (leaving what the op does not define untouched) and return it.
        """

    @abc.abstractmethod
    def cost(self, call: Call) -> Cost:
        """Work of the call, from metadata (worst case where lengths live on the device)."""

    @abc.abstractmethod
    def cases(self) -> Iterable[Case]:
        """All cases, cheap to list (data is built by Case.build)."""

    def error_cases(self) -> Iterable[ErrorCase]:
        """Calls that must raise."""
        return ()

    @abc.abstractmethod
    def tolerance(self, args: Args, output: str) -> Tolerance:
        """How close output `output` must be to the reference for these arguments."""

    def rounding(self, args: Args) -> tuple[torch.Tensor | None, ...]:
        """Per output an elementwise error beyond `tolerance` that float32 arithmetic explains (derived from `args`,
        not measured); None = none. Not zero only for inputs far larger than those the tolerance is made for."""
        return (None,) * len(self.returns)

    def comparable(self, args: Args, outputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """`outputs` of a kernel in the form in which the reference states them (quantised results dequantised, say)."""
        return outputs

    def valid(self, args: Args) -> tuple[torch.Tensor | None, ...]:
        """Per output a boolean mask (broadcastable) of what the op defines; None = everything. The rest must keep its
        bytes when the caller gives `out`."""
        return (None,) * len(self.returns)

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        """A copy of `args` with NaN, inf, huge or garbage values everywhere that must not matter; None = no such place.

        Outputs of the poisoned call must equal those of the plain one bit for bit (inside the valid region).
        """
        return None

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        """For ops with a batch: (arguments of a sub-batch, index into each output that selects its rows).

        Used to prove batch invariance where a kernel claims it; empty = the op has no batch to vary.
        """
        return ()
