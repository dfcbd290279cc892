"""`generate` and `chat` with streams that are closed, pipes, and interrupted: standard output carries results alone."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from deepinfer.cli.main import main
from tests.unit.cli.test_abuse import COMMAND, MODEL, shell

GENERATE = f"{COMMAND} generate {MODEL} --backend cpu --max-tokens 4"
CHAT = f"{COMMAND} chat {MODEL} --backend cpu --max-tokens 4"


def test_chat_from_a_pipe_prints_answers_alone(tmp_path: Path) -> None:
    piped = shell(f"printf 'hi\\nyou\\n' | {CHAT} --json", tmp_path)
    turns = json.loads(piped.stdout)
    assert [turn["error"] for turn in turns] == [None, None]
    assert "# user: you" in turns[1]["prompt"]
    plain = shell(f"printf 'hi\\n\\nnever asked\\n' | {CHAT}", tmp_path)
    assert plain.stdout.decode() == turns[0]["outputs"][0]["text"] + "\n"


def test_closed_standard_streams(tmp_path: Path) -> None:
    answer = shell(f"{GENERATE} x --json 2>&-", tmp_path)
    assert json.loads(answer.stdout)[0]["outputs"][0]["token_ids"], "what was meant for standard error is elsewhere"
    assert shell(f"{GENERATE} <&-", tmp_path).stdout == shell(f"{GENERATE} < /dev/null", tmp_path).stdout
    assert shell(f"{CHAT} <&-", tmp_path).returncode == 0
    assert shell(f"{GENERATE} x >&-", tmp_path).returncode == 0


@pytest.mark.parametrize("extra", [["--json"], []])
def test_an_interrupt_ends_with_its_own_status(extra: list[str]) -> None:
    command = [*COMMAND.split(), "generate", MODEL, "import ", "--backend", "cpu", "--max-tokens", "900"]
    process = subprocess.Popen(
        [*command, "--temperature", "1", *extra], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job inherits "ignored"
    )
    assert process.stderr is not None
    assert "device" in process.stderr.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors


def test_options_may_stand_around_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for argv in (["a", "b", "--max-tokens", "2"], ["--max-tokens", "2", "a", "b"], ["a", "--max-tokens", "2", "b"]):
        assert main(["generate", MODEL, "--backend", "cpu", *argv, "--json"]) == 0
        texts.append([result["outputs"][0]["text"] for result in json.loads(capsys.readouterr().out)])
    assert len(texts[0]) == 2
    assert texts[0] == texts[1] == texts[2]
