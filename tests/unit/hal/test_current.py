"""Choosing a backend: syntax, aliases, order of choice, reasons, and threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence

import pytest

import deepinfer
from deepinfer.errors import BackendUnavailable, InvalidArgument
from deepinfer.hal import Backend, Device, DeviceProps, DriverKind, Probe, current, discovery
from deepinfer.hal.null import NullDevice
from deepinfer.registry import Kernel


class FakeBackend(Backend):
    """Null devices under another name, with a chosen kind and availability."""

    name = "fake"
    aliases = ("pretend",)
    priority = 50
    drivers = ("", "sim")

    def __init__(self, kind: DriverKind = DriverKind.HARDWARE, available: bool = True) -> None:
        self.kind, self.available = kind, available

    def probe(self, driver: str = "") -> Probe:
        if not self.available:
            return Probe(False, reasons=("no such chip in this machine",), fix="buy one")
        return Probe(True, device_count=2)

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        opened = NullDevice(index)
        opened.backend, opened.driver = self.name, driver
        opened.props = DeviceProps("fake", arch or "fake", self.kind)
        return opened

    def kernels(self) -> Sequence[Kernel]:
        return ()


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    backend = FakeBackend()
    discovery.register_backend("fake", lambda: backend)
    yield backend
    discovery.unregister_backend("fake")


def test_full_syntax(fake: FakeBackend) -> None:
    assert deepinfer.device("fake/sim:1").spec == "fake/sim:1"
    assert deepinfer.device("pretend").spec == "fake:0"
    assert deepinfer.device("fake:1") is deepinfer.device("fake:1")
    assert {"cpu:0", "fake:0", "fake:1", "fake/sim:1"} <= set(deepinfer.devices())


@pytest.mark.parametrize("text", ["", "cpu:x", "cpu:-1", "cpu:", None, 3])
def test_malformed_specifications(text: object) -> None:
    with pytest.raises(InvalidArgument):
        deepinfer.set_backend(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(("opened", "says"), [(NullDevice(0), "backend 'null'"), (None, "returned NoneType")])
def test_a_device_of_another_backend_is_refused(fake: FakeBackend, opened: Device, says: str) -> None:
    """Kernels are looked up by the device's backend, so it would run another one's without a word."""
    fake.open = lambda index, driver="", arch=None: opened  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailable, match=says) as caught:
        deepinfer.set_backend("fake")
    assert caught.value.fix
    assert "fake" in caught.value.fix


def test_reasons_and_fixes_are_told(fake: FakeBackend) -> None:
    with pytest.raises(BackendUnavailable, match=r"valid indices are 0 to 1"):
        deepinfer.set_backend("fake:2")
    with pytest.raises(BackendUnavailable, match="its named drivers are: sim"):
        deepinfer.set_backend("fake/hal")
    fake.available = False
    with pytest.raises(BackendUnavailable, match="no such chip") as caught:
        deepinfer.set_backend("fake/sim")
    assert caught.value.fix == "buy one"
    with pytest.raises(BackendUnavailable, match="known names are"):
        deepinfer.set_backend("no-such-thing")


def test_missing_backend_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_installed", dict)
    monkeypatch.setattr(discovery, "_states", {})
    with pytest.raises(BackendUnavailable, match="pip install deepinfer-ascend950"):
        deepinfer.set_backend("ascend")


def test_automatic_prefers_hardware_and_never_a_simulator(fake: FakeBackend) -> None:
    assert deepinfer.current_device().spec == "fake:0"
    current.reset()
    fake.kind = DriverKind.SIMULATOR
    assert deepinfer.current_device().backend != "fake"


def test_automatic_choice_says_once_what_and_why(fake: FakeBackend, caplog: pytest.LogCaptureFixture) -> None:
    fake.available = False
    with caplog.at_level(logging.INFO, logger="deepinfer"):
        deepinfer.current_device()
        deepinfer.current_device()
    messages = [record.message for record in caplog.records if record.message.startswith("using ")]
    assert len(messages) == 1
    assert "no such chip" in messages[0]


def test_order_is_context_then_process_then_environment(fake: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BACKEND", "fake/sim")
    assert deepinfer.current_device().spec == "fake/sim:0"
    deepinfer.set_backend("fake:1")
    assert deepinfer.current_device().spec == "fake:1"
    with deepinfer.use_backend("cpu"):
        assert deepinfer.current_device().spec == "cpu:0"
    assert deepinfer.current_device().spec == "fake:1"


def test_use_backend_is_local_to_its_thread(fake: FakeBackend) -> None:
    seen: list[str] = []
    deepinfer.set_backend("fake:1")
    with deepinfer.use_backend("cpu"):
        thread = threading.Thread(target=lambda: seen.append(deepinfer.current_device().spec))
        thread.start()
        thread.join()
    assert seen == ["fake:1"]


def test_failed_choice_changes_nothing(fake: FakeBackend) -> None:
    deepinfer.set_backend("fake:1")
    with pytest.raises(BackendUnavailable):
        deepinfer.set_backend("fake:9")
    assert deepinfer.current_device().spec == "fake:1"


def test_plugin_that_fails_to_load_warns_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Backend:
        raise OSError("libmissing.so: cannot open")

    discovery.register_backend("broken", broken)
    try:
        with pytest.raises(BackendUnavailable, match=r"libmissing\.so"):
            deepinfer.set_backend("broken")
        assert any("Traceback" in record.message for record in caplog.records)
    finally:
        discovery.unregister_backend("broken")


def test_wrong_api_version_and_name_are_refused(fake: FakeBackend) -> None:
    fake.api_version = 99
    with pytest.raises(BackendUnavailable, match="API 99"):
        deepinfer.set_backend("fake")


def test_architecture_alias_reports_what_was_found() -> None:
    name, arch = discovery.canonical("cuda_sm10")
    assert (name, arch) == ("cuda", ("sm_100", "sm_103"))
