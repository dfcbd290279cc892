"""Sampling on a CPU: parameters may be read, so stages that change no row are left out and sorting is bounded.

The arithmetic is the portable tier's (`deepinfer.ops.sampling`); this kernel decides how much of it is needed:

    parameters --read--> drop identities --> greedy for all rows?  -> arg-max
                                         \\-> top-k / top-p left?   -> how many candidates are enough
                                                                      (largest k, or FEW or MANY if they hold the mass)

A full sort of 8 x 129280 logits costs about as much as a small model's step; the FEW largest of a trained model's
distribution nearly always hold the asked-for mass, and where they do not, everything is sorted.

Rows that are drawn from the whole softmax need none of that; for small vocabularies the array calls are what they cost,
so `plain` makes as few as it can.
"""

from __future__ import annotations

import abc
import math
import sys
from typing import Any

import numpy as np
import torch

from deepinfer.hal.device import Stream
from deepinfer.ops.sampling import philox
from deepinfer.ops.sampling.distribution import Candidates, Scaled
from deepinfer.ops.sampling.log_probs import tabulate
from deepinfer.ops.sampling.sample import draw
from deepinfer.registry import get_spec
from deepinfer.registry.kernel import Kernel, Plan
from deepinfer_cpu.philox import HostStream

FEW, MANY = 1024, 8192
LITTLE_ENDIAN = sys.byteorder == "little"
FILTERS = (
    "top_k", "top_p", "min_p", "bias_ids", "bias_values", "history", "prompt_lens", "repetition", "frequency",
    "presence", "banned_ids", "mask", "row_map",
)
Args = dict[str, Any]


def without_identities(args: Args) -> Args:
    """The same call with None for every parameter that changes no row."""
    vocab = args["logits"].shape[1]
    found = dict(args)

    def drop(name: str, changes: Any) -> None:
        value = args[name]
        if value is not None and not bool(changes(value).any()):
            found[name] = None

    drop("temperature", lambda t: t != 1)
    drop("top_k", lambda k: (k > 0) & (k < vocab))
    drop("top_p", lambda p: p < 1)
    drop("min_p", lambda p: p > 0)
    drop("repetition", lambda r: (r > 0) & (r != 1))
    for name in ("frequency", "presence"):
        drop(name, lambda f: f != 0)
    drop("banned_ids", lambda ids: ids >= 0)
    if found["repetition"] is None and found["frequency"] is None and found["presence"] is None:
        found["history"] = None
    if args["mask"] is not None and args["row_map"] is not None:
        named = (args["row_map"] >= 0) & (args["row_map"] < args["mask"].shape[0])
        if not bool(named.any()):
            found["mask"] = found["row_map"] = None
    return found


def filtered(args: Args) -> bool:
    """Whether anything but the temperature changes the softmax."""
    return any(args[name] is not None for name in FILTERS)


def plain(args: Args) -> tuple[torch.Tensor, ...] | None:
    """`draw` without filters, with the same bits; None where a row is greedy or not valid, or there is none."""
    logits = args["logits"]
    if args["greedy"] or not logits.numel():
        return None
    x = (logits if logits.dtype is torch.float32 else logits.float()).detach().numpy()
    with np.errstate(all="ignore"):
        top = np.maximum.reduce(x, 1, keepdims=True)
        if not all(map(math.isfinite, top.ravel().tolist())):
            return None
        log = x - top
        if args["temperature"] is not None:
            warmth = args["temperature"].detach().float()
            if not all(0 < number < math.inf for number in warmth.tolist()):
                return None
            np.divide(log, warmth.numpy()[:, None], log)
    stream = HostStream(args["seeds"], args["sample_index"], args["positions"])
    ids = torch.from_numpy((log + stream.all_noise(log.shape[1], args["purpose"]).numpy()).argmax(1))
    valid = torch.ones(log.shape[:1], dtype=torch.bool)
    return ids, valid, chosen(args, torch.from_numpy(log), ids)


def chosen(args: Args, log: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [n] of `ids` for weights `log` [n, V], as `draw` gives them."""
    if args["logprobs"] == "raw":
        wide: torch.Tensor = args["logits"].float()
        return (wide.gather(1, ids[:, None]) - wide.logsumexp(1, keepdim=True))[:, 0]
    if args["logprobs"] == "processed":
        total = log.exp().sum(1, keepdim=True, dtype=torch.float64).log()
        return (log.gather(1, ids[:, None]) - total).float()[:, 0]
    return torch.full(ids.shape, torch.nan, dtype=torch.float32)


def enough(args: Args) -> Candidates:
    """Which sorted candidates the rows of this call need."""

    def find(scaled: Scaled) -> int | torch.Tensor | None:
        count = _count(args, scaled)
        return count if count is None else _first(scaled.x, count)

    return find


def _first(x: torch.Tensor, count: int) -> int | torch.Tensor:
    """Ids of the `count` largest values in order where no two of them are equal, else their number.

    Choosing among 32-bit values costs a tenth of making 64-bit keys that tell equal values apart.
    """
    if not 0 < count <= x.shape[1] // 2:
        return count
    found = x.topk(count + 1, 1)
    if bool((found.values[:, 1:] == found.values[:, :-1]).any()):
        return count
    return found.indices[:, :count]


def _count(args: Args, scaled: Scaled) -> int | None:
    """How many sorted candidates are enough."""
    top_k, top_p = args["top_k"], args["top_p"]
    rows, vocab = scaled.x.shape
    if top_k is None and top_p is None:
        return None if args["min_p"] is None else _survivors(args["min_p"], scaled)
    limit = torch.full((rows,), vocab) if top_k is None else torch.where(top_k > 0, top_k.long(), vocab)
    limit = limit.clamp(max=vocab)
    if scaled.greedy is not None:
        limit = torch.where(scaled.greedy, 1, limit)
    largest = int(limit.max()) if rows else 0
    if largest <= FEW or vocab <= 2 * FEW or top_p is None:
        return largest
    # A margin far above the rounding of the sums, so that the cut surely lies inside.
    mass = scaled.log.exp().sum(1, dtype=torch.float64) * (top_p.double() + 1e-4)
    for few in (FEW, MANY):
        if vocab <= 2 * few:
            break
        held = scaled.log.topk(few, 1).values.exp().sum(1, dtype=torch.float64)
        # A smaller k than the vocabulary cuts at a share of its own k tokens' mass: all of them must be seen.
        if not bool(((limit > few) & ((limit < vocab) | ~(held > mass))).any()):
            return min(largest, few)
    return largest


def _survivors(min_p: torch.Tensor, scaled: Scaled) -> int | None:
    """The largest number of tokens that min-p leaves to a row, None where that is not few.

    Random words are then made for these tokens alone.
    """
    rows, vocab = scaled.x.shape
    if not rows or vocab <= 2 * FEW or bool((~(min_p > 0)).any()):
        return None
    floor = min_p.float().clamp(max=1.0)[:, None]
    # With a margin for the rounding of log and exp; `cut` looks again.
    count = int((scaled.log >= floor.log() - 1e-4).sum(1).max())
    return count if count <= FEW else None


class _Sampling(Kernel):
    tier = "native"
    allocates = True
    batch_invariant = True
    sources = ("kernels/sampling.py", "philox.py")

    def __init__(self) -> None:
        self._none = (None,) * len(get_spec(str(self.op)).returns)
        self._names = tuple(param.name for param in get_spec(str(self.op)).params)

    @abc.abstractmethod
    def results(self, args: Args) -> tuple[torch.Tensor, ...]:
        """The op's outputs."""

    def run(
        self,
        plan: Plan,
        stream: Stream,
        args: tuple[Any, ...],
        out: tuple[torch.Tensor | None, ...],
        workspace: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        found = self.results(dict(zip(self._names, args, strict=True)))
        if out == self._none:
            return found
        return tuple(new if old is None else old.copy_(new) for new, old in zip(found, out, strict=True))


class SampleKernel(_Sampling):
    """`sampling.sample`."""

    op = "sampling.sample"
    name = "bounded_sort"

    def results(self, args: Args) -> tuple[torch.Tensor, ...]:
        if filtered(args):
            args = without_identities(args)
        found = plain(args) if LITTLE_ENDIAN and not filtered(args) else None
        if found is not None:
            return found
        temperature = args["temperature"]
        if temperature is not None and not bool((temperature.float() > 0).any()):
            args = {**args, "greedy": True}
        return draw(args, enough(args), HostStream if LITTLE_ENDIAN else philox.Stream)


class LogProbsKernel(_Sampling):
    """`sampling.log_probs`."""

    op = "sampling.log_probs"
    name = "bounded_sort"

    def results(self, args: Args) -> tuple[torch.Tensor, ...]:
        args = without_identities(args)
        return (tabulate(args, enough(args)),)


KERNELS = (SampleKernel(), LogProbsKernel())
