"""Damaged PTX never crashes the process: it is refused with a message, or it still runs and ends."""

from __future__ import annotations

import random
import re

import gemms
import numpy as np
import pytest
import simlib


def damaged(text: str, rng: random.Random) -> str:
    """One random edit: a character, a token or a line is dropped, doubled or swapped, or the text is cut."""
    lines = text.split("\n")
    i = rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind == 0:
        return text[: rng.randrange(len(text))]
    if kind == 1:
        del lines[i]
    elif kind == 2:
        lines.insert(i, lines[rng.randrange(len(lines))])
    elif kind == 3 and lines[i]:
        at = rng.randrange(len(lines[i]))
        lines[i] = lines[i][:at] + chr(rng.randrange(1, 256)) + lines[i][at + 1 :]
    else:
        tokens = re.findall(r"%?\w+|\S", lines[i])
        if tokens:
            victim = rng.choice(tokens)
            lines[i] = lines[i].replace(
                victim, rng.choice(["", "%r1", "%rd3", "-1", "{", "]", "0xffffffffffff", "%p2", "_", ".u32"]), 1
            )
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_text_is_refused_or_runs(seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(25):
        name, run = rng.choice([("sm90_gemm", gemms.sm90), ("sm100_gemm", lambda t: gemms.sm100(t, 2))])
        text = damaged(gemms.text(name), rng)
        refused += bool(gemms.outcome(lambda t=text, r=run: r(t), stall_instructions=100000, findings="report"))
    assert refused > 2


def test_random_bytes() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        with pytest.raises(simlib.SimError):
            simlib.Module("entry " + bytes(rng.integers(32, 127, 200, np.uint8)).decode())


def test_machine_is_usable_after_a_fault() -> None:
    text = gemms.text("sm90_gemm")
    broken = re.sub(r"mbarrier\.arrive\.expect_tx[^;]*;", "trap;", text, count=1)
    assert "trap" in gemms.outcome(lambda: gemms.sm90(broken))
    assert gemms.outcome(lambda: gemms.sm90(text)) == ""
