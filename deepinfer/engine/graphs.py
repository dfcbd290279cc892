"""Decode steps as captured graphs: one launch from the host instead of several hundred.

    plan of n sequences, one token each
      -> the smallest captured size >= n, the block table's width      rows behind n are padding (batch.PaddedStep)
      -> fill the graph's own input tensors, one copy; replay          logits [size, vocab], always the same tensor
      -> rows [0, n) go to the sampler

What may be captured is found out, not assumed. A step of padding alone is run once to compile and plan its kernels,
watched for anything that makes the host wait (host_reads.py), then captured. The first real step runs both ways, and
the bits of the logits must be equal: that shows a graph that does not depend on what was in its inputs when captured.

All graphs share the memory of what lies between input and logits, because one runs at a time.

Invariants: a graph that has not passed is never used; a step that is not replayed runs as without this module; whatever
keeps graphs from being used is in the report, and is an error where graphs were asked for by size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import torch

from deepinfer.config import logger
from deepinfer.engine.batch import BatchTable, PaddedStep
from deepinfer.engine.host_reads import HostReads
from deepinfer.engine.request import Sequence
from deepinfer.errors import DeepInferError, UnsupportedError
from deepinfer.hal import Cap
from deepinfer.hal.device import Graph
from deepinfer.models import Model

PATIENCE = 4  # steps of one shape before "auto" captures it: a capture costs about as much as three steps
Key = tuple[int, int]


@dataclass
class GraphReport:
    """How decode steps were run so far.

    Attributes:
        mode: "off", "auto" or "sizes", as asked for.
        sizes: batch sizes that are captured.
        reasons: why no graph is used, empty while graphs are used or may still be.
        captured: (batch size, width of the block table) of every graph.
        replayed: steps that were replays.
        eager: steps that were not, by reason.
    """

    mode: str
    sizes: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    captured: tuple[Key, ...] = ()
    replayed: int = 0
    eager: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"decode graphs ({self.mode}): {self.replayed} steps replayed, {self.eager.total()} run eagerly"]
        lines += [f"  not used: {reason}" for reason in self.reasons]
        lines += [f"  captured: {size} sequences, block tables of {width}" for size, width in self.captured]
        lines += [f"  eager: {count} steps, {why}" for why, count in sorted(self.eager.items())]
        return "\n".join(lines)


@dataclass
class _Captured:
    """A graph with the tensors it reads and writes."""

    step: PaddedStep
    graph: Graph
    logits: torch.Tensor
    trusted: bool = False


class DecodeGraphs:
    """The graphs of one engine; used under the engine's lock.

    Args:
        cache: the tensors every graph reads and writes; they must outlive this object.
        wanted: "auto" (capture sizes that occur, say in the report what keeps that from working), False, or the sizes.
        most: sequences that may run at the same time.

    Raises:
        UnsupportedError: sizes were given and a step of one of them cannot be captured.
    """

    def __init__(
        self,
        model: Model,
        cache: list[torch.Tensor],
        table: BatchTable,
        wanted: str | bool | Items[int],
        most: int,
    ) -> None:
        self._model, self._cache, self._table, self._device = model, cache, table, model.device
        self._asked: Counter[Key] = Counter()
        self._graphs: dict[Key, _Captured] = {}
        self._strict = not isinstance(wanted, str | bool)
        sizes = () if wanted is False else default_sizes(most)
        if not isinstance(wanted, str | bool):
            sizes = tuple(wanted)
        self.report = GraphReport("sizes" if self._strict else "auto" if sizes else "off", sizes)
        if not sizes:
            self._refuse("decode_graphs is False")
        elif not self._device.supports(Cap.GRAPHS):
            self._refuse(f"{self._device.spec} cannot capture graphs: it lacks the capability GRAPHS")
        elif self._strict:
            for key in [(size, width) for size in reversed(sizes) for width in reversed(table.widths())]:
                self._capture(key)  # the largest first: the others fit into its memory

    def run(self, sequences: Items[Sequence], longest: int) -> torch.Tensor | None:
        """Logits [n, vocab] of the next token of `sequences`, valid until the next call, or None: run it eagerly.

        `longest` is the longest length after this step.
        """
        report = self.report
        if report.reasons:
            self._raise_if_strict()
            self.skip("without graphs")
            return None
        size = next((size for size in report.sizes if size >= len(sequences)), None)
        if size is None:
            self.skip(f"more than {report.sizes[-1]} sequences")
            return None
        key = (size, self._table.width(longest))
        found = self._graphs.get(key) or self._later(key)
        if found is None:
            return None
        found.step.fill(self._table, sequences)
        if found.trusted:
            found.graph.replay()
        elif not self._compare(key, found):
            return None
        report.replayed += 1
        return found.logits[: len(sequences)]

    def skip(self, why: str) -> None:
        """Count a step that is run eagerly."""
        self.report.eager[why] += 1

    def release(self) -> None:
        """Drop all graphs and what they hold."""
        self._graphs.clear()
        self._cache = []
        self.report.reasons = self.report.reasons or ("the engine is closed",)

    def _later(self, key: Key) -> _Captured | None:
        """Capture a shape that has been asked for often enough."""
        self._asked[key] += 1
        if self._asked[key] < PATIENCE:
            self.skip("before its shape was captured")
            return None
        return self._capture(key)

    def _forward(self, step: PaddedStep) -> torch.Tensor:
        return self._model.logits(self._model.forward(step.step, self._cache))

    def _capture(self, key: Key) -> _Captured | None:
        step = PaddedStep(self._device, *key)
        with HostReads() as watch:
            self._forward(step)
        self._device.synchronize()
        if watch.found:
            self._refuse(*watch.found)
            return None
        try:
            graph = self._device.graph(share=next((found.graph for found in self._graphs.values()), None))
            with graph:
                logits = self._forward(step)
        except (DeepInferError, RuntimeError) as error:
            self._refuse(f"capturing a step of {key[0]} sequences failed: {error}")
            return None
        self._graphs[key] = found = _Captured(step, graph, logits)
        self.report.captured = tuple(sorted(self._graphs))
        return found

    def _compare(self, key: Key, found: _Captured) -> bool:
        """The first real step: replay and eager run must agree to the bit."""
        expected = self._forward(found.step)
        found.graph.replay()
        self._device.synchronize()
        found.trusted = torch.equal(found.logits.view(torch.int32), expected.view(torch.int32))
        if not found.trusted:
            gap = float((found.logits - expected).abs().max())
            self._refuse(f"a replay for {key[0]} sequences differs from the same step run eagerly by up to {gap:.3g}")
        return found.trusted

    def _refuse(self, *reasons: str) -> None:
        """Use no graphs from here on."""
        self._graphs.clear()
        self.report.reasons, self.report.captured = reasons, ()
        self._raise_if_strict()
        if self.report.mode == "auto":
            logger.info("decode steps run without graphs: %s", "; ".join(reasons))

    def _raise_if_strict(self) -> None:
        if self._strict:
            raise UnsupportedError("decode_graphs: the given sizes cannot be captured", self.report.reasons)


def default_sizes(most: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ... up to `most`: at most a third of a batch is padding."""
    sizes = sorted({size for k in range(most.bit_length()) for size in (1 << k, 3 << k >> 1) if 0 < size < most})
    return (*sizes, most)


__all__ = ["DecodeGraphs", "GraphReport", "default_sizes"]
