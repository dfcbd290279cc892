"""Evidence rows and the generated page: staleness, the matrix, and that docs/ops.md in the repository is current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer.conformance import docs, evidence, sources
from deepinfer.errors import InvalidArgument
from deepinfer.hal import device as open_device
from deepinfer.registry import Kernel, all_specs
from deepinfer.registry.kernels import candidates

ROOT = Path(__file__).resolve().parents[3]
NORM = "norm.rms_norm"


def norm_sources() -> dict[str, Path]:
    return sources.files(candidates(open_device("cpu"), NORM)[0].kernel)


def row(**change: Any) -> dict[str, Any]:
    found = norm_sources()
    base = {
        "op": NORM, "kernel": "portable", "backend": "cpu", "driver": "", "tier": "host", "device": "x86_64",
        "date": "2026-11-30", "hash": sources.digest(found), "sources": sorted(found), "cases": 21, "suite": "quick",
        "versions": {},
    }
    return base | change


def test_page_in_the_repository_is_current() -> None:
    text = (ROOT / docs.PAGE).read_text("utf-8")
    assert text == docs.render(ROOT), "docs/ops.md is out of date: run python -m deepinfer.conformance.docs"


def test_page_documents_every_op() -> None:
    text = docs.render(ROOT)
    for spec in all_specs():
        assert f"### `{spec.name}`" in text
        assert type(spec).__doc__, f"{spec.name}: the spec needs a docstring, it is the op's documentation"


def test_staleness_follows_the_sources(tmp_path: Path) -> None:
    assert not docs.is_stale(row(), ROOT)
    assert docs.is_stale(row(hash="0" * 16), ROOT)
    assert docs.is_stale(row(), tmp_path)
    for name, path in norm_sources().items():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    assert not docs.is_stale(row(), tmp_path)
    target.write_bytes(target.read_bytes() + b"\n")
    assert docs.is_stale(row(), tmp_path)


def test_matrix_shows_the_best_tier_first(tmp_path: Path) -> None:
    rows = [row(tier="compiled", kernel="b"), row(tier="hardware", kernel="a", device="NVIDIA H200", hash="old")]
    evidence.merge(tmp_path / "bench" / "evidence" / "x.jsonl", rows)
    line = next(line for line in docs.render(tmp_path).splitlines() if line.startswith(f"| `{NORM}`"))
    assert "hardware (NVIDIA H200, 2026-11-30): `a`, 21 cases *stale*<br>compiled only: `b`, 21 cases" in line


def test_check_mode_tells_old_from_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bench" / "evidence").mkdir(parents=True)
    assert docs.main(["--root", str(tmp_path), "--check"]) == 1
    assert docs.main(["--root", str(tmp_path)]) == 0
    assert docs.main(["--root", str(tmp_path), "--check"]) == 0
    assert "current" in capsys.readouterr().out


def report(outcome: str) -> dict[str, Any]:
    return {
        "backend": "cuda", "device": {"spec": "cuda/sim:0", "name": "sim", "kind": "simulator"}, "tier": "quick",
        "versions": {}, "kernels": {NORM: {"k": {"cases": 3, "hash": "ab", "sources": ["s"]}}},
        "results": [{"subject": NORM, "outcome": outcome}],
    }


def test_evidence_comes_from_ops_without_a_failure() -> None:
    (found,) = evidence.from_report(report("passed"), "2026-11-30")
    assert set(found) == set(evidence.FIELDS)
    assert (found["tier"], found["driver"], found["cases"]) == ("simulated", "sim", 3)
    assert evidence.from_report(report("failed")) == []


def test_merge_keeps_the_newest_row(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    evidence.merge(path, [row(date="2026-01-01"), row(kernel="other")])
    evidence.merge(path, [row(date="2026-02-02")])
    assert [(one["kernel"], one["date"]) for one in evidence.read([path])] == [
        ("other", "2026-11-30"), ("portable", "2026-02-02"),
    ]


def test_merge_keeps_rows_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"bench": "sm90_gemm", "us": 3.5}\n', "utf-8")
    evidence.merge(path, [row()])
    assert len(evidence.read([path])) == 1
    assert '{"bench": "sm90_gemm", "us": 3.5}' in path.read_text("utf-8").splitlines()


def test_a_failed_run_takes_back_what_was_proved(tmp_path: Path) -> None:
    source, target = tmp_path / "r.json", tmp_path / "e.jsonl"
    elsewhere = row(backend="cuda", driver="", device="NVIDIA H200", tier="hardware")
    evidence.merge(target, [*evidence.from_report(report("passed")), elsewhere])
    source.write_text(json.dumps(report("failed")), "utf-8")
    assert evidence.main([str(source), str(target)]) == 0
    assert evidence.read([target]) == [elsewhere]


def test_bad_evidence_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(row()) + "\n{\n", "utf-8")
    with pytest.raises(InvalidArgument, match=r"e\.jsonl:2"):
        evidence.read([path])
    path.write_text(json.dumps({"tier": "host"}) + "\n", "utf-8")
    with pytest.raises(InvalidArgument, match="fields missing"):
        evidence.read([path])


def test_command_line_makes_rows(tmp_path: Path) -> None:
    source, target = tmp_path / "r.json", tmp_path / "out" / "e.jsonl"
    source.write_text(json.dumps(report("passed")), "utf-8")
    assert evidence.main([str(source), str(target)]) == 0
    assert len(evidence.read([target])) == 1


def test_evidence_names_files_that_every_machine_has() -> None:
    rows = evidence.read(sorted((ROOT / "bench" / "evidence").glob("*.jsonl")))
    assert rows
    assert not [row["op"] for row in rows if any("//" in name or Path(name).is_absolute() for name in row["sources"])]


def test_absolute_sources_are_refused() -> None:
    class Elsewhere(Kernel):
        op, name, sources = NORM, "elsewhere", (__file__,)

        def run(self, plan: Any, stream: Any, args: Any, out: Any, workspace: Any) -> None:
            raise NotImplementedError

    with pytest.raises(InvalidArgument, match="relative to the package"):
        sources.files(Elsewhere())


def test_declared_sources_exist_on_cpu() -> None:
    for spec in all_specs():
        for candidate in candidates(open_device("cpu"), spec.name):
            assert sources.missing(candidate.kernel) == []
            assert sources.digest(sources.files(candidate.kernel))
