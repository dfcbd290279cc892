"""Cache blocks: reference counts, the free list, and which blocks hold reusable prompt content.

Invariants (held by property tests):
- every block is either free (reference count 0, in the free list) or used (count >= 1, not in the free list);
- a free block with published content keeps it until no empty block is left; then the one freed first is taken;
- content is visible to others only after `publish`, which is called when the step that wrote it has finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deepinfer.engine.prefix import Entry, PrefixIndex
from deepinfer.errors import DeepInferError


class BlockPool:
    """`count` blocks of `page` tokens each. `index` is None when prefixes are not reused."""

    def __init__(self, count: int, page: int, index: PrefixIndex | None) -> None:
        self.count, self.page, self.index = count, page, index
        self._references = [0] * count
        self._empty = list(range(count - 1, -1, -1))
        self._cached: dict[int, None] = {}
        self._entries: dict[int, Entry] = {}

    @property
    def free(self) -> int:
        """Blocks that can be taken now, reusable content included."""
        return len(self._empty) + len(self._cached)

    def references(self, block: int) -> int:
        """Users of `block`."""
        return self._references[block]

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.page)

    def take(self) -> int:
        """A block with undefined content and one user; the caller made sure that one is free."""
        if self._empty:
            block = self._empty.pop()
        elif self._cached:
            block = next(iter(self._cached))
            del self._cached[block]
            entry = self._entries.pop(block)
            if self.index is not None:
                self.index.forget(entry)
        else:
            raise DeepInferError("internal: take() on an empty pool; the scheduler must check `free` first")
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a user to a used or published block; a free one leaves the free list."""
        if self._references[block] == 0:
            del self._cached[block]
        self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one user of each block; those without users become free.

        Pass a sequence's blocks in reverse order: then the end of a prefix is taken for something else before its
        beginning, which is worth more.
        """
        for block in blocks:
            left = self._references[block] - 1
            if left < 0:
                raise DeepInferError(f"internal: block {block} was released more often than it was used")
            self._references[block] = left
            if left == 0 and block in self._entries:
                self._cached[block] = None
            elif left == 0:
                self._empty.append(block)

    def publish(self, block: int, parent: Entry | None, root: bytes, tokens: Sequence[int]) -> Entry | None:
        """Make the written content of `block` findable; returns its entry, or the one that already has this content."""
        if self.index is None:
            return None
        entry = self.index.insert(block, parent, root, tokens)
        if entry is not None and entry.block == block:
            self._entries[block] = entry
        return entry

    def match(self, root: bytes, tokens: Sequence[int], limit: int) -> list[Entry]:
        """Entries of the longest published prefix of `tokens`, at most `limit` tokens."""
        return [] if self.index is None else self.index.match(root, tokens, limit)
