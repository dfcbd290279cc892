"""The training text: sources and documentation of the Python standard library of the running interpreter.

Every machine with Python has it, under the PSF licence. Invariants: files are read in sorted order, so the same
interpreter gives the same corpus; whole documents are held out, chosen by a hash of their name.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from tiny.config import BOS, EOS

# Third-party code, tests (repetitive data), bytecode, and modules that are tables rather than text.
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "__pycache__", "encodings", "pydoc_data"}
HELD_OUT_SHARE = 50  # one document in so many


@dataclass(frozen=True)
class Corpus:
    """Token streams (uint16 on the CPU), each document framed by BOS and EOS."""

    train: torch.Tensor
    held_out: torch.Tensor
    documents: int


def documents(root: Path | None = None) -> Iterator[tuple[str, bytes]]:
    """Name and UTF-8 text of every document: *.py files below `root` (default: the standard library), then topics."""
    top = root or Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(top.rglob("*.py")):
        relative = path.relative_to(top)
        if not SKIPPED.intersection(relative.parts[:-1]):
            yield relative.as_posix(), path.read_bytes()
    if root is None:
        yield from topics()


def topics() -> Iterator[tuple[str, bytes]]:
    """The language reference as `help()` shows it; an interpreter built without it contributes nothing."""
    try:
        table: dict[str, str] = import_module("pydoc_data.topics").topics
    except ModuleNotFoundError:
        print("note: this Python has no pydoc topics; training on sources alone")
        return
    for name in sorted(table):
        yield f"topics/{name}", table[name].encode()


def is_held_out(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % HELD_OUT_SHARE == 0


def build(root: Path | None = None) -> Corpus:
    """Read everything and split it."""
    train: list[torch.Tensor] = []
    held_out: list[torch.Tensor] = []
    for name, text in documents(root):
        if text:
            framed = torch.tensor([BOS, *text, EOS], dtype=torch.uint16)
            (held_out if is_held_out(name) else train).append(framed)
    if not train or not held_out:
        raise SystemExit(f"corpus: got {len(train)} training and {len(held_out)} held-out documents, needs both")
    return Corpus(torch.cat(train), torch.cat(held_out), len(train) + len(held_out))
