"""`ExpertBuffer`: the public face of Deep EP. Checks arguments, picks a transport, guards the connection.

Invariants: arguments are refused before anything is sent, so a refused call leaves the connection as it was; after a
CommTimeout or a disagreement between ranks the buffer refuses everything but `close()`; `close()` runs no collective
and nothing at all happens in a destructor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch

from deepinfer.errors import CommTimeout, InvalidArgument, invalid
from deepinfer.hal.current import current_device, use_backend
from deepinfer.hal.device import Device
from deepinfer.ops import checks
from deepinfer.ops.deep_ep import arguments as args
from deepinfer.ops.deep_ep import rows as row_format
from deepinfer.ops.deep_ep.arguments import DEFAULT_TIMEOUT
from deepinfer.ops.deep_ep.connect import choose, place
from deepinfer.ops.deep_ep.geometry import DTYPES, Geometry
from deepinfer.ops.deep_ep.handle import Handle
from deepinfer.ops.deep_ep.placement import Placement, Router
from deepinfer.ops.deep_ep.portable import CombineCall, DispatchCall
from deepinfer.ops.deep_ep.rows import Rows
from deepinfer.ops.deep_ep.transport import Deadline, Header, Outgoing, Transport

LAYOUTS = ("tokens", "experts")
REDUCTIONS = ("ranks", "slots")
_T = TypeVar("_T")


class ExpertBuffer:
    """Sends tokens to the ranks that hold their experts and brings the results back.

    All ranks of `group` construct it with the same arguments, and then make the same calls in the same order.
    Collective calls are the constructor, `dispatch` and `combine`; a wait in them takes `timeout` seconds at most.
    Several buffers of one group are independent when all ranks construct them in the same order.

    Args:
        group: a torch.distributed ProcessGroup, or a `LocalGroup` (then called on a thread bound to a rank).
        max_tokens: most tokens a rank may dispatch in one call.
        hidden: values in a row.
        num_experts: logical experts E, a multiple of the ranks unless `placement` says where they live.
        top_k: slots of a token K.
        dtype: bf16, f16 or f32, of plain rows in `dispatch` and of all rows in `combine`. Quantised rows may be
            dispatched through any buffer.
        placement: which expert each slot of each rank holds (replicas allowed); default E/R per rank in order.
        timeout: seconds that any wait may take.
        transport: name of the transport to use; default the first that supports the group.

    Raises:
        InvalidArgument: an argument breaks its rule, or ranks disagree.
        UnsupportedError: no transport connects this group on this device; lists why.
        CommTimeout: a rank did not arrive; `missing` names it.

    >>> import torch
    >>> from deepinfer.ops.deep_ep import ExpertBuffer, LocalGroup
    >>> group = LocalGroup(2)
    >>> def step(rank):
    ...     with ExpertBuffer(group, max_tokens=4, hidden=8, num_experts=4, top_k=2, dtype=torch.float32) as buffer:
    ...         x = torch.full((3, 8), rank + 1.0)
    ...         topk_idx = torch.tensor([[0, 3], [2, 1], [-1, 3]])
    ...         rows, expert, weights, handle = buffer.dispatch(x, topk_idx, torch.ones(3, 2), layout="experts")
    ...         return handle.counts.tolist(), buffer.combine(rows * 10, handle)[:, 0].tolist()
    >>> group.run(step)
    [([2, 2], [20.0, 20.0, 10.0]), ([2, 4], [40.0, 40.0, 20.0])]
    """

    def __init__(
        self,
        group: Any,
        max_tokens: int,
        hidden: int,
        num_experts: int,
        top_k: int,
        dtype: torch.dtype = torch.bfloat16,
        *,
        placement: Placement | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        transport: str | None = None,
    ) -> None:
        rank, size = place(group)
        self._timeout = args.positive("timeout", timeout)
        if placement is None:
            local = num_experts // size if args.is_count(num_experts) else num_experts
            Geometry(rank, size, max_tokens, hidden, num_experts, top_k, dtype, local)
            placement = Placement.contiguous(num_experts, size)
        elif placement.experts != num_experts:
            raise invalid("deep_ep: placement.experts", placement.experts, f"must be num_experts = {num_experts}")
        local = placement.local_slots(size)
        self.geometry = Geometry(rank, size, max_tokens, hidden, num_experts, top_k, dtype, local)
        self.device: Device = current_device()
        self._router = Router(placement, rank, self.device.torch_device)
        self._lock = threading.Lock()
        self._closed = False
        self._broken: str | None = None
        factory = choose(group, self.geometry, self.device, transport)
        self.nbytes = factory.size_hint(self.geometry)
        self._transport: Transport = factory.open(group, self.geometry, self.device, self._timeout)
        self._guarded("hello", self._hello)

    @property
    def timeout(self) -> float:
        """Seconds that a wait may take; may be set between calls, on each rank by itself."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout = args.positive("timeout", seconds)

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.geometry.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.geometry.size

    @property
    def transport(self) -> str:
        """Name of the transport in use."""
        return self._transport.name

    @property
    def placement(self) -> Placement:
        """Where experts live. Assigning another placement with as many slots takes effect with the next dispatch; all
        ranks must do it between the same two calls (a dispatch compares)."""
        return self._router.placement

    @placement.setter
    def placement(self, placement: Placement) -> None:
        geometry = self.geometry
        if placement.experts != geometry.num_experts or len(placement.slots) != geometry.size * geometry.local_slots:
            wanted = f"must have {geometry.num_experts} experts and {geometry.size * geometry.local_slots} slots"
            raise invalid("deep_ep: placement", f"{placement.experts} experts, {len(placement.slots)} slots", wanted)
        self._router = Router(placement, geometry.rank, self.device.torch_device)

    def dispatch(
        self,
        x: Rows,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor | None = None,
        *,
        layout: Literal["tokens", "experts"] = "tokens",
        alignment: int = 1,
        sync: bool = True,
        out: Rows | None = None,
        validate: bool = False,
    ) -> tuple[Rows, torch.Tensor, torch.Tensor, Handle]:
        """Send each token to the ranks that hold its experts.

        Args:
            x: [T,hidden] in the buffer's dtype, or `Quantized` with one scale per part of a row; T <= max_tokens, may
                differ between ranks and may be 0. Layout, alignment and sync may differ between ranks, the format not.
            topk_idx: [T,K] int32 | int64 expert ids; ids < 0 or >= E mean "slot unused". An expert that a token names
                twice gets it twice.
            topk_weights: [T,K] float32, or None for 1.
            layout: "tokens": one row per (token, this rank), ordered by (source rank, token). "experts": one row per
                (token, slot) of a local expert, grouped by expert, in a group ordered by (source rank, token, slot).
            alignment: layout "experts": each group starts at a multiple of it and is padded to one; padding is zero.
            sync: False sizes results to the buffer's capacity and leaves counts on the device; rows past the valid
                ones keep their bytes and have id -1. Where that reads nothing (`Transport.device_counts`), a device
                that hangs is told by `check()`.
            out: rows to write into (capacity-sized, contiguous), only with sync=False.
            validate: also raise when an id is >= E or a token names an expert twice (reads the device).

        Returns:
            (rows, ids, weights, handle). ids int32 local expert numbers: [rows,K] in layout "tokens" (-1 = not on this
            rank), [rows] in layout "experts" (-1 = padding); weights float32 alike, 0 where the id is -1.

        Raises:
            InvalidArgument: bad arguments (nothing was sent), or ranks disagree.
            CommTimeout: a rank did not arrive within `timeout`; the buffer can then only be closed.
        """
        op = "deep_ep.dispatch"
        geometry, device = self.geometry, self.device.torch_device
        row_format.check(op, x, geometry, device)
        args.lanes(op, "topk_idx", topk_idx, x.shape[0], geometry, device, checks.INDEX_DTYPES)
        if topk_weights is None:
            topk_weights = torch.ones(topk_idx.shape, dtype=torch.float32, device=device)
        args.lanes(op, "topk_weights", topk_weights, x.shape[0], geometry, device, (torch.float32,))
        args.choice(op, "layout", layout, LAYOUTS)
        args.alignment(op, layout, alignment)
        if out is not None:
            args.result_rows(op, x, out, geometry.row_capacity(layout, alignment), sync)
        if validate:
            args.ids(op, topk_idx, geometry.num_experts)
        router = self._router
        call = DispatchCall(
            x, router.slots(topk_idx), topk_weights, layout, alignment, sync, router.placement.digest, out
        )
        found = self._guarded("dispatch", lambda deadline: self._transport.dispatch(call, deadline))
        handle = Handle(
            layout, alignment, x.shape[0], found.starts, found.counts, found.total, found.num_rows, found.x.shape[0],
            found.state, self,
        )
        return found.x, found.ids, found.weights, handle

    def combine(
        self,
        y: torch.Tensor,
        handle: Handle,
        weights: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        reduce: Literal["ranks", "slots"] = "ranks",
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Bring results back to the ranks their tokens came from and add them up there.

        acc = float32(bias) or 0; for each contribution in top-k slot order acc = acc + w * y, the product rounded to
        float32 and then added; one rounding to the buffer's dtype at the end. Without used slots: bias or 0.

        Args:
            y: [handle.rows, hidden] in the buffer's dtype, row by row the results of dispatched rows. Padding and rows
                past the valid ones may hold anything.
            handle: of a dispatch of this buffer; all ranks combine the same dispatch.
            weights: [handle.rows] float32, one per row of `y`, as `dispatch` returned them in layout "experts".
                Applied if and only if given.
            bias: [T,hidden] of any float dtype, added first.
            reduce: "ranks": a token's rows on one rank are added there in float32 in slot order and rounded to the
                buffer's dtype, and that sum is added at the rank's last slot; one row per (token, rank) crosses.
                "slots": every row crosses; the bits do not depend on how experts are spread. Needs layout "experts".
            out: [T,hidden] result tensor.

        Returns:
            [T,hidden] in the buffer's dtype.

        Raises:
            InvalidArgument: bad arguments (nothing was sent), or ranks disagree.
            CommTimeout: a rank did not arrive within `timeout`; the buffer can then only be closed.
        """
        op = "deep_ep.combine"
        if not isinstance(handle, Handle) or handle.owner is not self:
            raise invalid(f"{op}: handle", type(handle).__name__, "must come from a dispatch of this buffer")
        args.choice(op, "reduce", reduce, REDUCTIONS)
        if reduce == "slots" and handle.layout == "tokens":
            raise invalid(f"{op}: reduce", reduce, "needs layout 'experts' (one row per slot)", nearest="'ranks'")
        hidden, dtype, device = self.geometry.hidden, self.geometry.dtype, self.device.torch_device
        args.tensor(op, "y", y, (handle.rows, hidden), (dtype,), "[handle.rows,hidden]", device)
        if weights is not None:
            rule = "[handle.rows], one weight per row of y"
            args.tensor(op, "weights", weights, (handle.rows,), (torch.float32,), rule, device)
        if bias is not None:
            args.tensor(op, "bias", bias, (handle.tokens, hidden), DTYPES, "[T,hidden]", device)
        if out is not None:
            args.tensor(op, "out", out, (handle.tokens, hidden), (dtype,), "[T,hidden]", device)
        call = CombineCall(y, handle.state, handle.layout, weights, bias, reduce == "slots", out)
        return self._guarded("combine", lambda deadline: self._transport.combine(call, deadline))

    def check(self) -> None:
        """Raise what went wrong on the device in calls with sync=False, which read nothing and so cannot say it.

        Waits for the device and reads it; a call with sync=True does the same. Until then results are as if the ranks
        that were missed had sent nothing.

        Raises:
            CommTimeout: rows of a rank did not arrive; `missing` names it. The buffer can then only be closed.
        """
        self._guarded("check", lambda _: self._transport.check())

    def close(self) -> None:
        """Give back this rank's communication memory; handles become useless.

        Idempotent, talks to no other rank. A call that another thread has in flight ends first, by its deadline.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._transport.close()

    def __enter__(self) -> ExpertBuffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _hello(self, deadline: Deadline) -> None:
        fields = tuple(self.geometry.agreed().items())
        none = torch.zeros(0, dtype=torch.int64, device=self.device.torch_device)
        header = Header("hello", (*fields, ("placement", self.placement.digest)))
        self._transport.exchange(Outgoing(header, (0,) * self.size, (), none), deadline)

    def _guarded(self, operation: str, work: Callable[[Deadline], _T]) -> _T:
        """Run one collective step. A failure in it means that ranks may be out of step, so it breaks the buffer."""
        with self._lock:
            if self._closed:
                raise InvalidArgument(f"deep_ep.{operation}: the buffer is closed; construct a new one")
            if self._broken is not None:
                cause = f"the buffer is unusable since {self._broken}; close it and construct a new one"
                raise CommTimeout(f"deep_ep.{operation}: {cause}")
            try:
                with use_backend(self.device), torch.no_grad():
                    return work(Deadline(self._timeout))
            except BaseException as error:  # an interrupt inside a collective step leaves ranks out of step as well
                self._broken = f"{type(error).__name__}: {error}"
                self._transport.abort()
                if operation == "hello":
                    self._transport.close()
                raise
