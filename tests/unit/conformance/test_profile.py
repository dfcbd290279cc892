"""conformance.toml: strict reading, strict matching, and what each kind of entry does to a result."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.conformance import suite
from deepinfer.conformance.item import Breach, Item, Target
from deepinfer.conformance.profile import KINDS, Entry, Profile, load
from deepinfer.errors import InvalidArgument, UnsupportedError

REASON = "not built yet for this device"


def write(folder: Path, text: str) -> Path:
    path = folder / "conformance.toml"
    path.write_text(text, "utf-8")
    return path


def test_reads_all_kinds(tmp_path: Path) -> None:
    text = "".join(f'[[{kind}]]\nop = "norm.*"\nreason = "{REASON}"\n' for kind in KINDS)
    profile = load(write(tmp_path, text))
    assert [entry.kind for entry in profile.entries] == ["unsupported", "expected_failure", "skip"]


@pytest.mark.parametrize(
    ("text", "mention"),
    [
        ('[[skip]]\nop = "x"\n', "reason"),
        ('[[skip]]\nop = "x"\nreason = "slow"\n', "reason"),
        (f'[[skip]]\nopp = "x"\nreason = "{REASON}"\n', "opp"),
        (f'[[skipped]]\nreason = "{REASON}"\n', "skipped"),
        (f'[[skip]]\nop = 3\nreason = "{REASON}"\n', "op"),
        ("[[skip]\n", "conformance.toml"),
    ],
)
def test_malformed_profiles_name_the_field(tmp_path: Path, text: str, mention: str) -> None:
    with pytest.raises(InvalidArgument, match=mention):
        load(write(tmp_path, text))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"gone\.toml"):
        load(tmp_path / "gone.toml")


def test_entries_can_be_limited_to_a_driver(tmp_path: Path) -> None:
    path = write(tmp_path, f'[[skip]]\nop = "*"\ndriver = "sim"\nreason = "{REASON}"\n')
    assert len(load(path, "sim").entries) == 1
    assert load(path, "").entries == ()


def item(check: str = "reference", case: str = "shape=[1]", subject: str = "norm.rms_norm", run: object = None) -> Item:
    return Item("L2", subject, case, check, run or (lambda target: None))  # type: ignore[arg-type]


def test_patterns_take_brackets_literally() -> None:
    assert Entry("skip", REASON, case="shape=[1]").matches(item())
    assert Entry("skip", REASON, case="shape=*").matches(item())
    assert not Entry("skip", REASON, case="shape=1").matches(item())


def test_stale_entries_are_found() -> None:
    stale = Entry("skip", REASON, op="norm.layer_norm")
    profile = Profile((Entry("skip", REASON, op="norm.*"), stale))
    assert profile.stale([item()]) == [stale]


def breach(target: Target) -> None:
    raise Breach("wrong")


def refusal(target: Target) -> None:
    raise UnsupportedError("no kernel", ["k: too wide"])


def bare_refusal(target: Target) -> None:
    raise UnsupportedError("no kernel")


@pytest.mark.parametrize(
    ("run", "kind", "outcome"),
    [
        (None, None, "passed"), (breach, None, "failed"), (refusal, None, "failed"),
        (None, "unsupported", "failed"), (breach, "unsupported", "failed"), (refusal, "unsupported", "unsupported"),
        (bare_refusal, "unsupported", "failed"),
        (None, "expected_failure", "failed"), (breach, "expected_failure", "expected_failure"),
        (refusal, "expected_failure", "expected_failure"), (breach, "skip", "skipped"),
    ],
)
def test_judgement(run: object, kind: str | None, outcome: str) -> None:
    entry = Entry(kind, REASON) if kind else None
    one = Item("L2", "norm.rms_norm", "c", "reference", run or (lambda target: None), entry)  # type: ignore[arg-type]
    assert suite.execute(one, None).outcome == outcome  # type: ignore[arg-type]


def test_stale_entry_fails_the_suite(tmp_path: Path) -> None:
    path = write(tmp_path, f'[[skip]]\nop = "norm.gone"\nreason = "{REASON}"\n')
    report = suite.run("cpu", levels=["L0"], profile=path)
    stale = [result for result in report.results if result.check == "profile is current"]
    assert [result.outcome for result in stale] == ["failed"]
    assert "norm.gone" in stale[0].message


def test_case_unsupported_as_a_whole_becomes_one_item(tmp_path: Path) -> None:
    case = "shape=1x1,dtype=float32"
    path = write(tmp_path, f'[[unsupported]]\nop = "norm.rms_norm"\ncase = "{case}"\nreason = "{REASON}"\n')
    target = suite.target("cpu", profile=path)
    items = [one for one in suite.collect(target, ["L2"], ["norm.rms_norm"]) if one.case == case]
    assert len(items) == 1
    assert suite.execute(items[0], target).outcome == "failed"  # cpu does support it: an unexpected pass
