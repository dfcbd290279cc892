"""One Deep EP case: inputs of all ranks by seed, a run on any device through `LocalGroup`, every output bit compared.

Padding, rows past the valid ones and rows of unused slots are filled with NaN before a combine, and results that an op
must not touch hold a pattern: both belong to the contract.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from deepinfer.hal.current import device as open_device
from deepinfer.hal.device import Device
from deepinfer.ops.deep_ep import reference
from deepinfer.ops.deep_ep.buffer import ExpertBuffer
from deepinfer.ops.deep_ep.local import LocalGroup
from deepinfer.ops.deep_ep.placement import Placement
from deepinfer.ops.deep_ep.rows import Rows, rebuild, tensors, to_bytes
from deepinfer.ops.quantized import Quantized

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
UNTOUCHED = 0x5A


@dataclass(frozen=True)
class _Plan:
    """A whole case, by rank: what goes in, what comes out, what is sent back (y, weights, bias) and its sums."""

    inputs: list[reference.RankInput]
    outputs: list[reference.RankOutput]
    back: list[torch.Tensor]
    weights: list[torch.Tensor | None]
    biases: list[torch.Tensor | None]
    combined: list[torch.Tensor]


@dataclass(frozen=True)
class EpCase:
    """One dispatch and its combine on R ranks.

    Attributes:
        params: ranks, T (tokens of the largest rank), tokens (of each), hidden, top_k, experts, dtype (bf16 | f16 |
            f32 | fp8_f32 | fp8_ue8m0 | fp4_ue8m0), layout, alignment, reduce, weights, bias, sync, ids (the pattern of
            topk_idx: plain, holes, none, same, range), replicas (spare slots per rank).
        tags: as in `registry.Case`. refs: ids of bug reports this case pins down.
    """

    params: Mapping[str, Any]
    tags: frozenset[str] = frozenset({"quick"})
    refs: tuple[str, ...] = ()
    seed: int = field(default=0)

    @property
    def op(self) -> str:
        return "deep_ep.exchange"

    @property
    def id(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.params.items())

    @property
    def row_dtype(self) -> torch.dtype:
        """dtype of the buffer and of combined rows."""
        return DTYPES.get(self.params["dtype"], torch.bfloat16)

    def placement(self) -> Placement:
        """E/R experts per rank, or every expert once and spare slots filled round robin."""
        experts, ranks, spare = (self.params[name] for name in ("experts", "ranks", "replicas"))
        if not spare:
            return Placement.contiguous(experts, ranks)
        slots = [slot % experts for slot in range(-(-experts // ranks) * ranks + spare * ranks)]
        step = next(step for step in (7, 11, 13, 1) if step == 1 or len(slots) % step)
        return Placement.of(experts, [slots[step * i % len(slots)] for i in range(len(slots))])

    def inputs(self) -> list[reference.RankInput]:
        """What each rank dispatches, on the CPU; deterministic in `seed`."""
        generator = torch.Generator().manual_seed(self.seed)
        return [self._rank_input(tokens, generator) for tokens in self.params["tokens"]]

    def expected(self) -> list[reference.RankOutput]:
        """What each rank receives."""
        ranks = self.params["ranks"]
        layouts, alignments = [self.params["layout"]] * ranks, [self.params["alignment"]] * ranks
        return reference.dispatch(self.inputs(), self.placement(), layouts, alignments)

    def run(self, device: str | Device) -> list[str]:
        """Run on `device` (all ranks on it) and compare all bits; one text per mismatch."""
        opened = open_device(device) if isinstance(device, str) else device
        group = LocalGroup(self.params["ranks"], [opened] * self.params["ranks"])
        plan = self._plan()
        found = group.run(lambda rank: self._check(group, opened, rank, plan))
        return [f"{self.id}: rank {rank}: {text}" for rank, texts in enumerate(found) for text in texts]

    def run_rank(self, group: Any, rank: int, device: Device) -> list[str]:
        """As `run` for one rank of a group that exists already, e.g. of processes; all ranks call it."""
        return [f"{self.id}: rank {rank}: {text}" for text in self._check(group, device, rank, self._plan())]

    def _plan(self) -> _Plan:
        """Inputs and expected outputs of all ranks."""
        inputs, outputs = self.inputs(), self.expected()
        back = [self._results(rank, output) for rank, output in enumerate(outputs)]
        biases = [self._bias(rank) for rank in range(self.params["ranks"])]
        weights = [entry.weights if self.params["weights"] else None for entry in outputs]
        if self.params["layout"] == "tokens" and self.params["weights"]:
            weights = [entry.weights.sum(1) for entry in outputs]
        combined = reference.combine(inputs, outputs, back, weights, biases, self.params["reduce"])
        return _Plan(inputs, outputs, back, weights, biases, combined)

    def _check(self, group: Any, device: Device, rank: int, plan: _Plan) -> list[str]:
        found, y = self._step(
            group, device, plan.inputs[rank], plan.back[rank], plan.weights[rank], plan.biases[rank]
        )
        return _compare(plan.outputs[rank], plan.combined[rank], found, y)

    def bench(self, device: str | Device, repeats: int = 10) -> dict[str, list[float]]:
        """Wall seconds of each repeat of "dispatch" and "combine": the slowest rank's, all starting together."""
        opened = open_device(device) if isinstance(device, str) else device
        inputs = self.inputs()
        group = LocalGroup(self.params["ranks"], [opened] * self.params["ranks"])

        def step(rank: int) -> list[tuple[float, float]]:
            given = _to_device(opened, inputs[rank])
            with self._buffer(group) as buffer:
                return [self._timed(buffer, opened, given) for _ in range(repeats + 1)][1:]

        times = group.run(step)
        return {
            name: [max(rank[i][which] for rank in times) for i in range(repeats)]
            for which, name in enumerate(("dispatch", "combine"))
        }

    def _timed(self, buffer: ExpertBuffer, device: Device, given: reference.RankInput) -> tuple[float, float]:
        p = self.params
        device.synchronize()
        began = time.perf_counter()
        x, _, weights, handle = buffer.dispatch(
            given.x, given.topk_idx, given.topk_weights, layout=p["layout"], alignment=p["alignment"], sync=p["sync"]
        )
        device.synchronize()
        middle = time.perf_counter()
        y = x if isinstance(x, torch.Tensor) else x.data.new_zeros(x.shape, dtype=self.row_dtype)
        weight = weights if p["weights"] and p["layout"] == "experts" else None
        start = time.perf_counter()
        buffer.combine(y, handle, weight, reduce=p["reduce"])
        device.synchronize()
        return middle - began, time.perf_counter() - start

    def _buffer(self, group: Any) -> ExpertBuffer:
        p = self.params
        return ExpertBuffer(
            group, max(p["tokens"]) + 1, p["hidden"], p["experts"], p["top_k"], self.row_dtype,
            placement=self.placement() if p["replicas"] else None,
        )

    def _step(
        self, group: Any, device: Device, given: reference.RankInput, back: torch.Tensor,
        weights: torch.Tensor | None, bias: torch.Tensor | None,
    ) -> tuple[dict[str, Any], torch.Tensor]:
        """One rank's dispatch and combine; everything returned lies on the CPU."""
        p = self.params
        here = _to_device(device, given)
        with self._buffer(group) as buffer:
            out = None if p["sync"] else _pattern(here.x, buffer.geometry.row_capacity(p["layout"], p["alignment"]))
            x, ids, received, handle = buffer.dispatch(
                here.x, here.topk_idx, here.topk_weights, layout=p["layout"], alignment=p["alignment"],
                sync=p["sync"], out=out,
            )
            y = device.to_device(_padded(back, handle.rows, float("nan")))
            weight = None if weights is None else device.to_device(_padded(weights, handle.rows, float("nan")))
            start = None if bias is None else device.to_device(bias)
            combined = buffer.combine(y, handle, weight, start, reduce=p["reduce"])
            found = {
                "x": rebuild(x, [device.to_host(part) for part in tensors(x)]),
                "ids": device.to_host(ids), "weights": device.to_host(received),
                "starts": None if handle.starts is None else device.to_host(handle.starts),
                "counts": device.to_host(handle.counts), "total": int(device.to_host(handle.total)),
                "num_rows": handle.num_rows,
            }
            return found, device.to_host(combined)

    def _rank_input(self, tokens: int, generator: torch.Generator) -> reference.RankInput:
        p = self.params
        x = torch.randn(tokens, p["hidden"], generator=generator)
        weights = torch.rand(tokens, p["top_k"], generator=generator)
        return reference.RankInput(self._rows(x, generator), self._ids(tokens, generator), weights)

    def _rows(self, x: torch.Tensor, generator: torch.Generator) -> Rows:
        name = self.params["dtype"]
        if name in DTYPES:
            return x.to(DTYPES[name])
        block = 128 if name == "fp8_f32" else 32
        shape = (x.shape[0], -(-x.shape[1] // block))
        scale = torch.randint(100, 140, shape, generator=generator).to(torch.uint8)
        if name == "fp8_f32":
            return Quantized(x.to(torch.float8_e4m3fn), torch.rand(shape, generator=generator), (1, block))
        if name == "fp8_ue8m0":
            return Quantized(x.to(torch.float8_e4m3fn), scale, (1, block), "ue8m0")
        data = torch.randint(0, 256, (x.shape[0], x.shape[1] // 2), generator=generator).to(torch.uint8)
        return Quantized(data, scale, (1, block), "ue8m0", "e2m1")

    def _ids(self, tokens: int, generator: torch.Generator) -> torch.Tensor:
        """Expert ids by pattern; "range" mixes in ids below 0 and beyond E, "holes" unused slots and unused tokens."""
        experts, lanes, pattern = (self.params[name] for name in ("experts", "top_k", "ids"))
        if pattern == "none":
            return torch.full((tokens, lanes), -1, dtype=torch.int64)
        if pattern == "same":
            return torch.full((tokens, lanes), experts - 1, dtype=torch.int32)
        if pattern == "range":
            return torch.randint(-3, experts + 3, (tokens, lanes), generator=generator).to(torch.int32)
        order = torch.rand(tokens, max(experts, lanes), generator=generator).argsort(1)
        ids: torch.Tensor = order[:, :lanes] % experts
        if pattern == "holes":
            ids[torch.rand(tokens, lanes, generator=generator) < 0.4] = -1
            ids[::3] = -1
        return ids

    def _results(self, rank: int, output: reference.RankOutput) -> torch.Tensor:
        """y of one rank: random, NaN in padding."""
        generator = torch.Generator().manual_seed(1000 + 31 * self.seed + rank)
        y = torch.randn(len(output.rows), self.params["hidden"], generator=generator).to(self.row_dtype)
        y[[number for number, row in enumerate(output.rows) if not row]] = float("nan")
        return y

    def _bias(self, rank: int) -> torch.Tensor | None:
        if not self.params["bias"]:
            return None
        generator = torch.Generator().manual_seed(2000 + rank)
        shape = (self.params["tokens"][rank], self.params["hidden"])
        return torch.randn(shape, generator=generator).to(self.row_dtype)


def _to_device(device: Device, given: reference.RankInput) -> reference.RankInput:
    x = rebuild(given.x, [device.to_device(part) for part in tensors(given.x)])
    return reference.RankInput(x, device.to_device(given.topk_idx), device.to_device(given.topk_weights))


def _pattern(x: Rows, rows: int) -> Rows:
    """Capacity-sized rows whose bytes are all UNTOUCHED."""
    parts = []
    for part in tensors(x):
        width = part.shape[1] * part.dtype.itemsize
        plane = torch.full((rows, width), UNTOUCHED, dtype=torch.uint8, device=part.device)
        parts.append(plane.view(part.dtype) if plane.numel() else part.new_empty((rows, part.shape[1])))
    return rebuild(x, parts)


def _padded(rows: torch.Tensor, count: int, value: float) -> torch.Tensor:
    return torch.cat((rows, rows.new_full((count - rows.shape[0], *rows.shape[1:]), value)))


def _compare(
    want: reference.RankOutput, combined: torch.Tensor, found: dict[str, Any], y: torch.Tensor
) -> list[str]:
    """Texts of everything that differs."""
    valid = len(want.rows)
    texts = [] if found["total"] == valid else [f"total is {found['total']}, must be {valid}"]
    if found["num_rows"] not in (None, valid):
        texts.append(f"num_rows is {found['num_rows']}, must be {valid}")
    for name in ("ids", "weights"):
        texts += _differ(name, found[name][:valid], getattr(want, name))
    if bool((found["ids"][valid:] != -1).any()):
        texts.append("ids past the valid rows must be -1")
    for number, (got, part) in enumerate(zip(tensors(found["x"]), tensors(want.x), strict=True)):
        texts += _differ(("x", "x.scale")[number], got[:valid], part)
        if bool((to_bytes(got[valid:]) != UNTOUCHED).any()):
            texts.append("rows past the valid ones must keep their bytes")
    if want.starts is not None:
        texts += _differ("starts", found["starts"], want.starts)
    texts += _differ("counts", found["counts"], want.counts)
    return texts + _differ("combined", y, combined)


def _differ(name: str, got: torch.Tensor, want: torch.Tensor) -> list[str]:
    if got.shape != want.shape or got.dtype != want.dtype:
        return [f"{name}: got {got.dtype} {list(got.shape)}, must be {want.dtype} {list(want.shape)}"]
    if got.numel() == 0 or torch.equal(_bits(got), _bits(want)):
        return []
    rows = (_bits(got) != _bits(want)).reshape(got.shape[0], -1).any(1).nonzero().reshape(-1).tolist()
    return [f"{name}: {len(rows)} of {got.shape[0]} rows differ, first row {rows[0]}"]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)
