"""What runs in the next step: decoding sequences first, prompt chunks in what is left of one token budget.

- Every running sequence that decodes gets its token in every step, so a long prompt never stalls others.
- The oldest prompt in progress gets at least half of the rest; the other half goes to the shortest ones first, so short
  prompts pass long ones and the oldest still cannot starve.
- A sequence is admitted when all its known tokens fit beside what running prompts still need; one that does not fit may
  be passed by later ones a bounded number of times.
- Without a free block the sequence that would lose the least work is put back and recomputed later. The one with the
  most work is never put back while others run, so any pool that holds one request makes progress.

Invariants: waiting sequences hold neither blocks nor a row; a planned sequence owns blocks for all its planned tokens.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

from deepinfer.engine.batch import BatchTable
from deepinfer.engine.blocks import BlockPool
from deepinfer.engine.request import Sequence, Status

LOOKAHEAD = 16  # waiting sequences looked at per step
PATIENCE = 64  # steps in which later sequences may pass one that does not fit
_KEY = attrgetter("key")

Plan = dict[Sequence, int]


class Scheduler:
    """Decides about blocks, rows and steps; knows no tensors.

    Args:
        max_tokens: token budget of a step, at least `max_sequences`.
    """

    def __init__(self, pool: BlockPool, table: BatchTable, max_sequences: int, max_tokens: int) -> None:
        self.pool, self.table = pool, table
        self.max_sequences, self.max_tokens = max_sequences, max_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._rows = list(range(max_sequences - 1, -1, -1))
        self._plan: Plan = {}

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        insort(self.waiting, sequence, key=_KEY)

    def schedule(self) -> Plan:
        """Tokens of each sequence in the next step; single-token ones first. Empty only when nothing is left."""
        self._plan = {}
        for sequence in self.running.copy():
            if sequence.pending == 1 and sequence.status is Status.RUNNING:
                self._reserve(sequence, 1)
        prompts = [s for s in self.running if s.pending > 1]
        if prompts:
            self._plan_prompts(prompts)
        if self.waiting:
            self._admit()
        plan = self._plan
        if prompts or any(count > 1 for count in plan.values()):
            plan = dict(sorted(plan.items(), key=lambda item: item[1] > 1))
        return plan

    def _budget(self) -> int:
        return self.max_tokens - sum(self._plan.values())

    def _plan_prompts(self, prompts: list[Sequence]) -> None:
        head, *others = prompts
        budget = self._budget()
        wanted = sum(s.pending for s in others) + sum(len(s.tokens) for s in self.waiting[:LOOKAHEAD])
        self._reserve(head, min(head.pending, max(budget - wanted, budget - budget // 2)))
        for sequence in sorted(others, key=attrgetter("pending")):
            count = min(sequence.pending, self._budget())
            if count > 0 and sequence.status is Status.RUNNING:
                self._reserve(sequence, count)

    def _admit(self) -> None:
        for sequence in self.waiting[:LOOKAHEAD]:
            budget = self._budget()
            if budget <= 0 or len(self.running) >= self.max_sequences:
                return
            if sequence.status is Status.WAITING and not self._start(sequence, budget):
                sequence.passed_over += 1
                if sequence.passed_over > PATIENCE:
                    return

    def _start(self, sequence: Sequence, budget: int) -> bool:
        """Admit `sequence` if all its known tokens fit; reuses a cached prefix, never the last known token."""
        request, tokens = sequence.request, sequence.tokens
        limit = 0 if request.needs_prompt_logits and not sequence.new_tokens else len(tokens) - 1
        hits = self.pool.match(request.root, tokens, limit)
        idle_hits = sum(self.pool.references(entry.block) == 0 for entry in hits)
        need = self.pool.blocks_for(len(tokens)) - len(hits)
        if need > self.pool.free - idle_hits - self._promised():
            return False
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_KEY)
        sequence.status, sequence.row, sequence.passed_over = Status.RUNNING, self._rows.pop(), 0
        for entry in hits:
            self.pool.share(entry.block)
        sequence.entries, sequence.chained = hits, True
        sequence.computed = len(hits) * self.pool.page
        self._append(sequence, [entry.block for entry in hits])
        self.table.start(sequence)
        self._count_hit(sequence, limit)
        self._reserve(sequence, min(sequence.pending, budget))
        return True

    def _count_hit(self, sequence: Sequence, limit: int) -> None:
        metrics = sequence.request.output.metrics
        if sequence.new_tokens == 0 and metrics.preemptions == 0 and sequence.completion.index == 0:
            metrics.cached_tokens = sequence.computed
            if self.pool.index is not None and limit:
                self.pool.index.count(sequence.computed, limit)

    def _promised(self) -> int:
        """Blocks that running sequences need soon: the rest of their prompts, and one each to grow."""
        page = self.pool.page
        return sum(-(-len(s.tokens) // page) - len(s.blocks) + 1 for s in self.running)

    def _reserve(self, sequence: Sequence, count: int) -> bool:
        """Plan `count` tokens of a running sequence, putting others (or itself) back until its blocks are there."""
        need = self.pool.blocks_for(sequence.computed + count) - len(sequence.blocks)
        if need > 0:
            while self.pool.free < need:
                victim = min(self.running, key=self._value)
                self.put_back(victim)
                if victim is sequence:
                    return False
            self._append(sequence, [self.pool.take() for _ in range(need)])
        self._plan[sequence] = count
        return True

    def _value(self, sequence: Sequence) -> tuple[int, int, int]:
        """What putting a sequence back would cost: the least important first, then the least computed, then the newest.

        Blocks that others use too stay, so they are no loss.
        """
        shared = sum(self.pool.references(block) > 1 for block in sequence.blocks)
        return (-sequence.request.priority, sequence.computed - shared * self.pool.page, -sequence.request.order)

    def _append(self, sequence: Sequence, blocks: list[int]) -> None:
        if blocks:
            self.table.set_blocks(sequence.row, len(sequence.blocks), blocks)
            sequence.blocks += blocks

    def put_back(self, sequence: Sequence) -> None:
        """Preempt: free everything; the sequence keeps its tokens and waits to be recomputed."""
        self._plan.pop(sequence, None)
        self._leave(sequence)
        sequence.status = Status.WAITING
        sequence.request.output.metrics.preemptions += 1
        insort(self.waiting, sequence, key=_KEY)

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(reversed(sequence.blocks))
        self._rows.append(sequence.row)
        sequence.blocks, sequence.entries, sequence.computed, sequence.row = [], [], 0, -1

    def settle(self, plan: Iterable[tuple[Sequence, int]]) -> None:
        """A step has finished on the device: its rows count as written and full blocks become reusable."""
        page, reuse = self.pool.page, self.pool.index is not None
        for sequence, count in plan:
            sequence.computed += count
            while reuse and sequence.chained and (len(sequence.entries) + 1) * page <= sequence.computed:
                self._publish(sequence, len(sequence.entries))

    def _publish(self, sequence: Sequence, number: int) -> None:
        page = self.pool.page
        parent = sequence.entries[-1] if sequence.entries else None
        tokens = sequence.tokens[number * page : (number + 1) * page]
        entry = self.pool.publish(sequence.blocks[number], parent, sequence.request.root, tokens)
        if entry is None:
            sequence.chained = False
        else:
            sequence.entries.append(entry)

    def fork(self, parent: Sequence, child: Sequence) -> tuple[int, int] | None:
        """Start `child`, which equals `parent` up to its computed tokens, on the parent's blocks.

        Returns (source, destination) of the one partly filled block that must be copied, or None when there is none.
        Without a free row or block the child waits and is computed like any other.
        """
        full, rest = divmod(parent.computed, self.pool.page)
        if (
            len(self.running) >= self.max_sequences
            or self.pool.free < (rest > 0)
            or parent.status is not Status.RUNNING
        ):
            insort(self.waiting, child, key=_KEY)
            return None
        insort(self.running, child, key=_KEY)
        child.status, child.row, child.computed = Status.RUNNING, self._rows.pop(), parent.computed
        child.entries, child.chained = parent.entries[:full], parent.chained
        shared = parent.blocks[:full]
        for block in shared:
            self.pool.share(block)
        self._append(child, shared)
        self.table.start(child)
        if not rest:
            return None
        copy = self.pool.take()
        self._append(child, [copy])
        return parent.blocks[full], copy

    def finish(self, sequence: Sequence) -> None:
        """Remove a sequence that produced its last token, failed or was aborted."""
        if sequence.status is Status.RUNNING:
            self._leave(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
