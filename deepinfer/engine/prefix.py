"""Which prompt prefixes have their cache rows in which blocks: a content-addressed index.

A block's key is a SHA-256 over its parent's key and its tokens; the chain starts from a root key over tagged fields
(model, adapter, salt), so equal texts in different fields give different roots. Keys only find candidates: on a hit
the tokens and the parent are compared, so even a broken hash function cannot return foreign content.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Hash = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """The default hash."""
    return hashlib.sha256(data).digest()


def root_key(fields: Mapping[str, str | None], hash_function: Hash = sha256) -> bytes:
    """Key of the empty prefix in the name space that `fields` (adapter, salt, ...) describe."""
    return hash_function(json.dumps(dict(fields), sort_keys=True).encode())


@dataclass(frozen=True, eq=False)
class Entry:
    """One block's content: `tokens` (packed) after `parent`'s, in the name space `root`. Compared by identity."""

    key: bytes
    block: int
    parent: Entry | None
    root: bytes
    tokens: bytes


class PrefixIndex:
    """Entries by key. `page` is the number of tokens of a block."""

    def __init__(self, page: int, hash_function: Hash = sha256) -> None:
        self.page, self._hash = page, hash_function
        self._by_key: dict[bytes, Entry] = {}
        self.hit_tokens = self.asked_tokens = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def _find(self, parent: Entry | None, root: bytes, packed: bytes) -> tuple[bytes, Entry | None]:
        key = self._hash((parent.key if parent else root) + packed)
        entry = self._by_key.get(key)
        if entry is not None and (entry.tokens != packed or entry.parent is not parent or entry.root != root):
            return key, None
        return key, entry

    def insert(self, block: int, parent: Entry | None, root: bytes, tokens: Sequence[int]) -> Entry | None:
        """Enter `block`; returns the entry with this content (an older one keeps its place), None on a collision or
        when the parent has been forgotten."""
        if parent is not None and self._by_key.get(parent.key) is not parent:
            return None
        packed = array("q", tokens).tobytes()
        key, found = self._find(parent, root, packed)
        if found is not None:
            return found
        if key in self._by_key and not self._orphaned(self._by_key[key]):
            return None
        self._by_key[key] = entry = Entry(key, block, parent, root, packed)
        return entry

    def _orphaned(self, entry: Entry) -> bool:
        """Whether an entry cannot be reached any more because its parent was forgotten."""
        return entry.parent is not None and self._by_key.get(entry.parent.key) is not entry.parent

    def forget(self, entry: Entry) -> None:
        """Remove `entry`: its block is about to hold something else. Entries behind it can no longer be reached."""
        if self._by_key.get(entry.key) is entry:
            del self._by_key[entry.key]

    def match(self, root: bytes, tokens: Sequence[int], limit: int) -> list[Entry]:
        """The longest chain of entries whose tokens are `tokens`[:k], k <= limit."""
        chain: list[Entry] = []
        parent: Entry | None = None
        for start in range(0, limit - self.page + 1, self.page):
            _, entry = self._find(parent, root, array("q", tokens[start : start + self.page]).tobytes())
            if entry is None:
                break
            chain.append(entry)
            parent = entry
        return chain

    def count(self, hit: int, asked: int) -> None:
        """Record a look-up for the hit rate."""
        self.hit_tokens += hit
        self.asked_tokens += asked
