"""The step machine: schedule, run the model, sample, settle, deliver. One per engine; callers hold the engine's lock.

Invariants: a request's result changes only inside `step`, `add` and `abort`; whatever fails, every request that was
added gets a finish reason; between two calls nothing is in flight on the device. A step is never entered twice: what a
finalizer or a signal handler aborts in the middle of one ends with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from deepinfer.config import logger
from deepinfer.engine.batch import BatchTable, build_step
from deepinfer.engine.blocks import BlockPool
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.graphs import DecodeGraphs
from deepinfer.engine.prefix import PrefixIndex
from deepinfer.engine.prompt_scores import collect_prompt
from deepinfer.engine.request import Request, Sequence, Status
from deepinfer.engine.sampler import Sampler
from deepinfer.engine.scheduler import Plan, Scheduler
from deepinfer.engine.stopping import after_token, close_text
from deepinfer.engine.tokenizer import Tokenizer
from deepinfer.errors import DeepInferError
from deepinfer.hal import use_backend
from deepinfer.models import Model


class EngineCore:
    """A model, its cache and its scheduler.

    Args:
        max_len: longest sequence in tokens; `num_blocks` blocks hold at least one such sequence.
    """

    def __init__(
        self, model: Model, config: EngineConfig, max_len: int, num_blocks: int, tokenizer: Tokenizer | None
    ) -> None:
        self.model, self.device, self.tokenizer, self.max_len = model, model.device, tokenizer, max_len
        self.index = PrefixIndex(config.block_size) if config.enable_prefix_caching else None
        self.pool = BlockPool(num_blocks, config.block_size, self.index)
        self.table = BatchTable(config.max_num_seqs, self.pool.blocks_for(max_len), config.block_size)
        self.scheduler = Scheduler(self.pool, self.table, config.max_num_seqs, config.max_num_batched_tokens)
        self.cache = model.new_cache(num_blocks, config.block_size)
        self.sampler = Sampler(model.device, model.config.vocab_size)
        with torch.inference_mode():
            self.graphs = DecodeGraphs(model, self.cache, self.table, config.decode_graphs, config.max_num_seqs)
        self.steps = 0
        self.stepping = False
        self._aborted: list[tuple[Request, str]] = []

    def add(self, request: Request) -> None:
        """Queue a request whose prompt was validated."""
        if request.limit == len(request.prompt_ids) and not request.needs_prompt_logits:
            for sequence in request.sequences:
                self._finish(sequence, "length")
            return
        self.scheduler.add(request.sequences[0])

    def abort(self, request: Request, reason: str = "abort") -> None:
        """End what is left of a request; its outputs keep what they have. Inside a step it ends with the step."""
        if self.stepping:
            self._aborted.append((request, reason))
        else:
            self._end(request, reason)

    def fail(self, request: Request, error: DeepInferError) -> None:
        """End a request with `error`."""
        request.output.error = request.output.error or error
        self._end(request, "error")

    def _end(self, request: Request, reason: str) -> None:
        for sequence in request.sequences:
            self._finish(sequence, reason)

    def step(self) -> bool:
        """One step for everything that is queued; False when nothing was left to do."""
        plan: Plan = {}
        self.stepping = True
        try:
            plan = self.scheduler.schedule()
            if not plan:
                return False
            self.steps += 1
            with torch.inference_mode(), use_backend(self.device):
                self._run(plan)
        except Exception as error:  # whatever it is, it belongs to the requests of this step, not to who drives it
            known = isinstance(error, DeepInferError | RuntimeError | MemoryError)
            logger.warning("a step of %d sequences failed: %s", len(plan), error, exc_info=not known)
            self._fail_plan(plan, error)
        except BaseException as error:  # an interrupt of the driving thread: others must not wait for what is lost
            self._fail_plan(plan, error)
            raise
        finally:
            self.stepping = False
            while self._aborted:
                self._end(*self._aborted.pop())
        return True

    def _fail_plan(self, plan: Plan, error: BaseException) -> None:
        wrapped = error
        if not isinstance(wrapped, DeepInferError):
            wrapped = DeepInferError(f"the step failed: {str(error) or type(error).__name__}")
            wrapped.__cause__ = error
        for sequence in plan:
            self.fail(sequence.request, wrapped)

    def _run(self, plan: Plan) -> None:
        now = time.monotonic()
        for sequence in plan:
            metrics = sequence.request.output.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = now
        all_rows = any(s.request.needs_prompt_logits and not s.new_tokens for s in plan)
        logits = self._replay(plan, all_rows)
        values = logits
        if values is None:
            values = self.model.forward(build_step(self.table, plan, self.device, all_rows), self.cache)
        done = [count == sequence.pending for sequence, count in plan.items()]
        if all_rows:
            collect_prompt(self.model, values, plan, self.tokenizer)
        self.scheduler.settle(plan.items())
        targets, source = self._targets([s for s, complete in zip(plan, done, strict=True) if complete])
        if not targets:
            return
        rows = _last_rows(plan, done, all_rows)
        values = _take(values, source if rows is None else [rows[i] for i in source])
        self._deliver(targets, self.model.logits(values) if logits is None else values)

    def _replay(self, plan: Plan, all_rows: bool) -> torch.Tensor | None:
        """Logits of a step of single tokens through a captured graph, None where it must be run eagerly."""
        if all_rows or any(count != 1 for count in plan.values()):
            self.graphs.skip("with prompt tokens")
            return None
        sequences = list(plan)
        return self.graphs.run(sequences, max(s.computed for s in sequences) + 1)

    def _targets(self, ready: list[Sequence]) -> tuple[list[Sequence], list[int]]:
        """Who gets a token of this step, and which of `ready` each one's logits belong to.

        The other samples of a prompt that is now complete take theirs from the prompt's last row too.
        """
        source = list(range(len(ready)))
        first = [(i, s) for i, s in enumerate(ready) if not s.new_tokens]
        unsampled = {s for _, s in first if s.request.limit == len(s.request.prompt_ids)}
        if unsampled:
            for sequence in unsampled:
                for other in sequence.request.sequences:
                    self._finish(other, "length")
            source = [i for i in source if ready[i] not in unsampled]
        targets = [ready[i] for i in source]
        for i, sequence in first:
            others = sequence.request.sequences[1:] if sequence not in unsampled else []
            targets += others
            source += [i] * len(others)
        return targets, source

    def _deliver(self, targets: list[Sequence], logits: torch.Tensor) -> None:
        tokens, valid = self.sampler(logits, targets)
        self.sampler.record_logprobs(logits, targets, tokens, valid, self.tokenizer)
        now = time.monotonic()
        for sequence, token, good in zip(targets, tokens, valid, strict=True):
            if sequence.status is Status.FINISHED:
                continue
            if not good:
                error = DeepInferError(
                    "no token can be drawn: the request's logits hold NaN, or bias and bans leave none"
                )
                self.fail(sequence.request, error)
                continue
            if sequence.request.output.metrics.first_token_time is None:
                sequence.request.output.metrics.first_token_time = now
            reason = after_token(sequence, token)
            if reason is not None:
                self._finish(sequence, reason)
        self._fork([s for s in targets if s.status is Status.WAITING and s.new_tokens == 1 and s.completion.index])

    def _fork(self, children: Iterable[Sequence]) -> None:
        for child in children:
            parent = child.request.sequences[0]
            copy = self.scheduler.fork(parent, child)
            if copy is not None:
                for layer in self.cache:
                    layer[copy[1]].copy_(layer[copy[0]])

    def _finish(self, sequence: Sequence, reason: str) -> None:
        if sequence.status is Status.FINISHED:
            return
        self.scheduler.finish(sequence)
        close_text(sequence, reason, self.tokenizer)
        if sequence.request.finished:
            sequence.request.output.metrics.finished_time = time.monotonic()


def _take(values: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """values[rows] without a copy where that is everything in order."""
    if rows == list(range(values.shape[0])):
        return values
    return values[torch.tensor(rows, device=values.device)]


def _last_rows(plan: Plan, done: list[bool], all_rows: bool) -> list[int] | None:
    """Rows of the hidden states that are sampled from; None = all of them in order."""
    if not all_rows:
        return None if all(done) else [i for i, complete in enumerate(done) if complete]
    rows, end = [], 0
    for count, complete in zip(plan.values(), done, strict=True):
        end += count
        if complete:
            rows.append(end - 1)
    return rows
