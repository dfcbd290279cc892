"""Every report id that a case or a test names is explained in docs/reports.md, and every explained id is used."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reports.md"
FOLDERS = (ROOT / "deepinfer", ROOT / "tests", ROOT / "backends")
NAMED = re.compile(r"\b(C\d\d)\b|_(c\d\d)\b")
FOREIGN = {"C11"}  # the standard of the C language is named in comments too, so its use proves nothing


def _explained() -> set[str]:
    return set(re.findall(r"^\| (C\d\d) \|", PAGE.read_text("utf-8"), re.M))


def _used() -> set[str]:
    files = [path for folder in FOLDERS for path in folder.rglob("*.py") if path != Path(__file__)]
    return {(a or b).upper() for path in files for a, b in NAMED.findall(path.read_text("utf-8"))}


def test_every_named_report_is_explained() -> None:
    assert not _used() - _explained()


def test_every_explained_report_is_used() -> None:
    assert not _explained() - _used() - FOREIGN
