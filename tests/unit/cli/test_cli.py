"""The command line: help, JSON that parses, reasons on errors, exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import deepinfer
from deepinfer.cli.main import COMMANDS, main


def _json(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main(argv) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"deepinfer {command}" in capsys.readouterr().out


def test_backends_lists_known_and_installed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _json(capsys, "backends", "--json")
    by_name = {row["backend"]: row for row in rows}
    assert by_name["cpu"]["state"] == "loaded"
    assert by_name["cpu"]["devices"] == 1
    assert {"cuda", "ascend950", "null"} <= set(by_name)


def test_doctor_passes_on_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    report = _json(capsys, "doctor", "--backend", "cpu", "--json")
    assert report["ok"]
    assert report["devices"][0]["result"] == "PASS"
    assert report["versions"]["deepinfer"]


def test_doctor_tells_why_a_backend_cannot_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--backend", "cpu:7", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert "valid indices" in report["devices"][0]["remark"]


def test_explain_lists_ops_cases_and_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    assert "norm.rms_norm" in [row["op"] for row in _json(capsys, "explain", "--json")]
    case = _json(capsys, "explain", "norm.rms_norm", "--cases", "--json")[2]
    found = _json(capsys, "explain", "norm.rms_norm", "--backend", "cpu", "--case", case, "--json")
    assert found["case"] == case
    assert any(candidate["taken"] for candidate in found["candidates"])


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["explain", "no.such"], "must be one of"),
        (["explain", "norm.rms_norm", "--case", "nope"], "case ids"),
        (["explain", "norm.rms_norm", "--backend", "nope"], "known names are"),
        (["generate", "/nonexistent", "hello", "--backend", "cpu"], "/nonexistent"),
    ],
)
def test_errors_are_one_message_and_status_2(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert text in capsys.readouterr().err


def test_tables_print_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--backend", "cpu"]) == 0
    assert main(["backends"]) == 0
    assert main(["explain"]) == 0
    assert "PASS" in capsys.readouterr().out


def test_console_script_is_installed() -> None:
    command = [sys.executable, "-m", "deepinfer.cli.main", "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert out.stdout.startswith("deepinfer ")


def test_doctor_checks_one_of_simulated_devices_that_are_alike() -> None:
    from deepinfer.cli.doctor import check_all

    rows = check_all(["cpu:0", "cpu:0", "cpu:9"])
    assert [row["result"] for row in rows] == ["PASS", "PASS", "FAIL"]
    simulated = [spec for spec in deepinfer.devices() if "/sim:" in spec]
    rows = check_all(simulated)
    assert sum(row["alike"] + 1 for row in rows) == len(simulated)
    assert len({(row["device"].split(":")[0], row["arch"]) for row in rows}) == len(rows)
