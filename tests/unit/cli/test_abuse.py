"""The command line with nonsense, closed and full outputs, narrow encodings and a bare environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.cli.main import main

ROOT = Path(__file__).parents[3]
MODEL = str(ROOT / "examples" / "models" / "tiny-v3")
COMMAND = f"{sys.executable} -m deepinfer.cli.main"


def shell(line: str, folder: Path, **variables: str | None) -> subprocess.CompletedProcess[bytes]:
    """Run a shell line in `folder` with changed environment variables (None removes one)."""
    env = {key: value for key, value in {**os.environ, **variables}.items() if value is not None}
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=folder, env=env, capture_output=True, timeout=300)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


@pytest.mark.parametrize("argv", [
    ["explain", "no.such.op"], ["explain", "norm.rms_norm", "--case", "x"],
    ["explain", "norm.rms_norm", "--backend", ""],
    ["explain", "norm.rms_norm", "--backend", "cpu:99"], ["conformance", "nothing"],
    ["conformance", "cpu", "--op", "nothing"], ["conformance", "cpu", "--report", "/no/such/folder/x.json"],
    ["bench", "run", "--op", "nothing"], ["bench", "run", "--out", "/no/such/folder/x.jsonl"],
    ["bench", "compare", "/no/such/file", "/no/such/file"], ["generate", "/no/such/model", "x"],
    ["generate", MODEL, "x", "--temperature", "nan"], ["generate", MODEL, "x", "--dtype", "int3"],
    ["generate", MODEL, "x", "--max-tokens", "-1"], ["generate", MODEL, "x", "--stop", ""],
    ["chat", "/no/such/model", "--message", "x"], ["generate", "x" * 5000, "x"],
    ["conformance", "cpu", "--report", "x" * 5000],
], ids=lambda argv: " ".join(argv)[:60])
def test_every_error_is_one_json_document(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, "--json"]) == 2
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert error["message"]
    assert f"deepinfer: {error['type']}: " in printed.err


@pytest.mark.parametrize("backend", ["", "nothing", "cpu:99"])
def test_doctor_reports_what_it_cannot_open(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--backend", backend, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_rows_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"\xff\xfe\x00")
    assert main(["bench", "compare", str(tmp_path / "rows.jsonl"), str(tmp_path / "rows.jsonl")]) == 2
    assert "rows.jsonl" in capsys.readouterr().err


def test_a_parameter_is_refused_before_the_prompt_is_echoed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", MODEL, "echo", "--top-k", "-5"]) == 2
    assert "echo" not in capsys.readouterr().out


def test_a_turn_that_fails_is_in_the_document_with_those_before(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["chat", MODEL, "--max-tokens", "2", "--json", "--message", "a", "--message", "\ud800", "--message", "b"]
    assert main(argv) == 1
    turns = json.loads(capsys.readouterr().out)
    assert [bool(turn["error"]) for turn in turns] == [False, True]


def test_a_reader_that_leaves_and_outputs_that_fail(tmp_path: Path) -> None:
    assert len(shell(f"{COMMAND} explain norm.rms_norm --cases | head -1", tmp_path).stdout.splitlines()) == 1
    assert shell(f"{COMMAND} explain --json > /dev/full", tmp_path).returncode == 2
    assert shell(f"{COMMAND} explain norm.rms_norm --cases >&-", tmp_path).returncode in (0, 2)


def test_narrow_encodings_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    done = shell(f"{COMMAND} generate {MODEL} 'é🤗' --max-tokens 2", tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert b"\\xe9" in done.stdout
    piped = shell(f"printf '\\xff\\xfe' | {COMMAND} generate {MODEL} --max-tokens 2", tmp_path)
    assert piped.returncode == 1
    assert b"valid Unicode" in piped.stderr


def test_without_home_and_without_a_cache(tmp_path: Path) -> None:
    variables = {"HOME": None, "DEEPINFER_CACHE_DIR": "/proc/none", "DEEPINFER_LOG_LEVEL": "loud"}
    done = shell(f"{COMMAND} doctor --backend cpu --json", tmp_path, **variables)
    assert done.returncode == 0
    assert json.loads(done.stdout)["ok"] is True
