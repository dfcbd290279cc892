"""Backends that break their contract: every mistake becomes a reason, in every place that meets it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch

import deepinfer
from deepinfer.cli.main import main
from deepinfer.errors import BackendUnavailable, DeepInferError, DriverError, InvalidArgument
from deepinfer.hal import Device, current, discovery
from deepinfer.hal.null import NullBackend, NullDevice
from deepinfer.registry import Kernel


class Mine(NullBackend):
    """A sound backend; tests replace one member."""

    name, priority = "mine", 1000

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        device = NullDevice(index)
        device.backend = "mine"
        return device


class _Norm(Kernel):
    op, name = "norm.rms_norm", "twice"

    def run(self, plan, stream, args, out, workspace):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def _boom(*_: object) -> Any:
    raise KeyError("boom")


def _exits() -> Any:
    raise SystemExit(3)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    current.reset()
    yield
    deepinfer.hal.unregister_backend("mine")
    current.reset()


def _register(**members: Any) -> None:
    deepinfer.register_backend("mine", type("Broken", (Mine,), members))


BROKEN = {
    "probe raises": ({"probe": _boom}, "probe('') raised KeyError: 'boom'"),
    "probe is none": ({"probe": lambda self, driver="": None}, "returned NoneType, must be a Probe"),
    "probe counts text": ({"probe": lambda self, driver="": deepinfer.hal.Probe(True, "1")}, "counts '1' devices"),
    "open raises": ({"open": _boom}, "raised KeyError: 'boom'"),
    "open is a number": ({"open": lambda self, i, driver="", arch=None: 42}, "returned int, must be"),
    "open is another's": ({"open": lambda self, i, driver="", arch=None: NullDevice(i)}, "backend 'null'"),
    "drivers are none": ({"drivers": None}, "drivers is None, must be a tuple of str"),
    "drivers are empty": ({"drivers": ()}, "drivers is empty"),
    "aliases are one text": ({"aliases": "abc"}, "aliases is 'abc', must be a tuple of str"),
    "priority is text": ({"priority": "high"}, "priority is 'high', must be an int"),
}


@pytest.mark.parametrize("label", BROKEN)
def test_choosing_it_tells_the_reason_and_automatic_choice_passes_it_over(label: str) -> None:
    members, reason = BROKEN[label]
    _register(**members)
    with pytest.raises(BackendUnavailable) as caught:
        deepinfer.set_backend("mine")
    assert reason in str(caught.value)
    assert "mine" in str(caught.value)
    assert deepinfer.current_device().spec == "cpu:0"
    assert "cpu:0" in deepinfer.devices()


@pytest.mark.parametrize("label", BROKEN)
def test_commands_list_it_beside_the_others(label: str, capsys: pytest.CaptureFixture[str]) -> None:
    members, reason = BROKEN[label]
    _register(**members)
    assert main(["backends", "--json"]) == 0
    assert {row["backend"] for row in json.loads(capsys.readouterr().out)} >= {"cpu", "mine"}
    assert main(["doctor", "--backend", "mine", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["devices"]
    assert row["result"] == "FAIL"
    assert reason in row["remark"]


KERNELS = {
    "raises": (_boom, "kernels() raised KeyError"),
    "none": (lambda self: None, "raised TypeError"),
    "junk": (lambda self: [7], "must hold deepinfer.registry.Kernel"),
    "twice": (lambda self: [_Norm(), _Norm()], "must be declared by one kernel only"),
}


@pytest.mark.parametrize("label", KERNELS)
def test_kernels_that_cannot_be_listed_are_refused_at_the_first_op(label: str) -> None:
    kernels, reason = KERNELS[label]
    _register(kernels=kernels)
    with deepinfer.use_backend("mine"), pytest.raises(DeepInferError) as caught:
        deepinfer.ops.norm.rms_norm(torch.ones(1, 2), torch.ones(2))
    assert reason in str(caught.value)
    assert "mine" in str(caught.value)


def test_a_plugin_that_leaves_the_interpreter_fails_alone() -> None:
    deepinfer.register_backend("mine", _exits)
    with pytest.raises(BackendUnavailable, match="SystemExit: 3"):
        deepinfer.device("mine")


@pytest.mark.parametrize("name", ["Mine", "a/b", "mine:0", "", 3, "9lives", "a b"])
def test_names_that_no_specification_could_say_are_refused(name: object) -> None:
    with pytest.raises(InvalidArgument, match="name: got"):
        deepinfer.register_backend(name, Mine)  # type: ignore[arg-type]


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="factory"):
        deepinfer.register_backend("mine", None)  # type: ignore[arg-type]


class _Entry:
    """An installed entry point of a chosen package."""

    def __init__(self, name: str, value: str, package: str) -> None:
        self.name, self.value = name, value
        self.dist = type("Dist", (), {"name": package})()
        self.load = EntryPoint(name, value, discovery.GROUP).load


def test_packages_that_claim_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = next(entry for entry in discovery.entry_points(group=discovery.GROUP) if entry.name == "cpu")
    rivals = [
        _Entry("cpu", "deepinfer.hal.null:create", "impostor"), _Entry("cpu", cpu.value, "deepinfer"),
        _Entry("both", "deepinfer.hal.null:create", "one"), _Entry("both", "deepinfer.hal.null:NullBackend", "two"),
    ]
    monkeypatch.setattr(discovery, "entry_points", lambda group: rivals)
    monkeypatch.setattr(discovery, "_states", {})
    assert discovery.load("cpu").kernels()  # the package that the core knows keeps its name
    with pytest.raises(BackendUnavailable) as caught:
        deepinfer.device("both")
    assert "one (" in str(caught.value)
    assert "two (" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["cpu:²", "cpu:" + "9" * 5000, "cpu:٣", "cpu/", "cpu/:0", "/sim", ":0", "cpu:1_0", "cpu: 0"]
)
def test_specifications_that_only_look_right(text: str) -> None:
    with pytest.raises(InvalidArgument, match="backend: got") as caught:
        deepinfer.set_backend(text)
    assert "nearest legal value" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("value", "error"), [("cpu:²", InvalidArgument), ("cpx", BackendUnavailable), (" ", InvalidArgument)]
)
def test_the_environment_is_named(value: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BACKEND", value)
    with pytest.raises(error, match="DEEPINFER_BACKEND"):
        deepinfer.current_device()


def test_a_near_name_is_proposed() -> None:
    with pytest.raises(BackendUnavailable, match="did you mean 'ascend'"):
        deepinfer.set_backend("ascent")


def test_a_closed_device_is_refused_and_its_name_opens_a_new_one() -> None:
    device = deepinfer.set_backend("null")
    device.close()
    with pytest.raises(BackendUnavailable, match="was closed"):
        deepinfer.ops.norm.rms_norm(torch.ones(1, 2), torch.ones(2))
    assert deepinfer.device("null") is not device
    assert not deepinfer.device("null").closed


def test_a_device_is_one_however_it_is_copied() -> None:
    device = deepinfer.device("cpu")
    assert copy.copy(device) is device
    assert copy.deepcopy([device])[0] is device
    assert pickle.loads(pickle.dumps(device)) is device  # in another process: that process's device of this name


@pytest.mark.parametrize("error", [
    DriverError("mem_alloc", "OUT_OF_MEMORY", "no room"), BackendUnavailable("m", ["r"], "fix"),
    deepinfer.errors.CommTimeout("late", [1, 2]), deepinfer.errors.UnsupportedError("m", ["a"]),
    deepinfer.errors.invalid("page", 0, "must be >= 1", nearest=1),
], ids=lambda error: type(error).__name__)
def test_errors_cross_processes(error: DeepInferError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert twin.__dict__ == error.__dict__
