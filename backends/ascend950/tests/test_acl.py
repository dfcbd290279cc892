"""The ACL driver against a stand-in library: arguments and failure of every call, peers, torch_npu's streams."""

from __future__ import annotations

import ctypes as ct
import subprocess
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from deepinfer_ascend950 import detect, device
from deepinfer_ascend950.drivers import acl, acl_library, acl_peer
from deepinfer_ascend950.toolchain.gxx import find

from deepinfer.errors import BackendUnavailable, DriverError, InvalidArgument, UnsupportedError
from deepinfer.hal import Arg, Cap, Image
from deepinfer.hal.types import CopyKind

SOURCE = Path(__file__).with_name("fake_ascendcl.c")
# Functions whose failure is an answer: texts, and questions with a value to fall back on.
QUIET = ("aclGetRecentErrMsg", "aclrtGetSocName", "aclrtGetDevice", "aclrtGetDeviceInfo", "aclrtGetDeviceCount")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles the stand-in with some flags."""

    def made(*flags: str) -> Path:
        path = tmp_path_factory.mktemp("acl") / "libascendcl.so"
        subprocess.run([find(), "-x", "c", "-shared", "-fPIC", *flags, str(SOURCE), "-o", str(path)], check=True)
        return path

    return made


@pytest.fixture(scope="session")
def whole(build: Callable[..., Path]) -> Path:
    return build()


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | Path], None]]:
    """Makes a path the runtime that the driver loads."""

    def chosen(path: str | Path) -> None:
        monkeypatch.setattr(acl_library, "LIBRARY", str(path))
        acl_library.forget()

    yield chosen
    acl_library.forget()


class Fake:
    """The stand-in's own side."""

    def __init__(self, path: Path) -> None:
        self._library = ct.CDLL(str(path))
        self._library.fake_log.restype = ct.c_char_p
        self.forget()

    def fail(self, name: str, status: int = 500000) -> None:
        self._library.fake_fail(name.encode(), status)

    def forget(self) -> None:
        self._library.fake_forget()

    def log(self) -> list[str]:
        """Calls since the last time."""
        lines = self._library.fake_log().decode().splitlines()
        self.forget()
        return [line.strip() for line in lines]


@pytest.fixture
def fake(whole: Path, use: Callable[[str | Path], None]) -> Fake:
    use(whole)
    return Fake(whole)


def everything(driver: acl.AclDriver) -> None:
    """One use of every function of the interface."""
    ctx = driver.open(1)
    driver.mem_info(ctx)
    a, b = driver.mem_alloc(ctx, 100), driver.mem_alloc(ctx, 0)
    stream, event, last = driver.stream_create(ctx), driver.event_create(ctx), driver.event_create(ctx)
    driver.memset_async(ctx, a, 3, 100, stream)
    driver.memcpy_async(ctx, b, a, 1, CopyKind.D2D, stream)
    driver.event_record(ctx, event, stream)
    driver.event_wait(ctx, event, stream)
    driver.event_synchronize(ctx, event)
    driver.event_elapsed_ms(ctx, event, last)
    module = driver.module_load(ctx, Image(b"\x7fELF!", "elf", "kernel"))
    fn = driver.function(module, "entry")
    driver.launch(fn, (5, 1, 1), (1, 1, 1), 0, [Arg((0x1122).to_bytes(8, "little")), Arg(b"\1\0\0\0")], stream)
    driver.stream_synchronize(ctx, stream)
    driver.stream_synchronize(ctx, 0)
    driver.mem_free(ctx, a)
    driver.mem_free(ctx, b)
    for handle in (module, stream, event, last, ctx):
        driver.release(handle)


def test_every_call_reaches_the_runtime_as_its_headers_say(fake: Fake) -> None:
    driver = acl.AclDriver()
    assert fake.log() == ["aclInit null"]
    everything(driver)
    log = fake.log()
    assert log[0] == "aclrtSetDevice 1"
    assert log.count("aclrtSetDevice 1") == 1  # the thread keeps its device
    for line in (
        "aclrtGetMemInfo 1",
        "aclrtMalloc 100 0",
        "aclrtMalloc 1 0",
        "aclrtBinaryLoadFromFile \x7fELF! null",
        "aclrtSynchronizeDevice",
    ):
        assert line in log
    stream = next(line for line in log if line.startswith("aclrtSynchronizeStream")).split()[1]
    assert f"aclrtMemsetAsync 100 3 100 {stream}" in log
    assert f"aclrtMemcpyAsync 1 1 3 {stream}" in log
    launch = next(line for line in log if line.startswith("aclrtLaunch")).split()
    assert launch[2:] == ["5", stream, "null", "16", "1122", "null", "0"]
    assert f"aclrtDestroyStream {stream}" in log
    assert sum(line.startswith("aclrtDestroyEvent") for line in log) == 2


@pytest.mark.parametrize("name", [name for name in acl_library.SYMBOLS if name not in QUIET])
def test_a_failure_names_function_status_reason_and_remedy(fake: Fake, name: str) -> None:
    fake.fail(name, 507033)
    with pytest.raises(DriverError) as caught:
        everything(acl.AclDriver())
    for part in (name, "507033", "E19999: the stand-in was told to fail", "/dev/davinci"):
        assert part in str(caught.value)


def test_a_status_without_a_known_remedy_sends_to_the_log(fake: Fake) -> None:
    driver = acl.AclDriver()
    fake.fail("aclrtMalloc", 42)
    with pytest.raises(DriverError, match=r"aclrtMalloc.*42.*log.*set_env\.sh"):
        driver.mem_alloc(driver.open(0), 8)


def test_properties_are_asked_for(fake: Fake) -> None:
    driver = acl.AclDriver()
    props = driver.device_props(1)
    assert (props.name, props.compute_units, props.memory_bytes) == ("Ascend950PR_9599", 36, 112 << 30)
    assert props.l2_bytes == acl.L2_BYTES  # the runtime knows no such attribute
    assert Cap.PEER_MEMORY in props.caps
    assert driver.probe().device_count == 2
    fake.fail("aclrtGetDeviceCount", 507008)
    refused = driver.probe()
    assert not refused.available
    assert "npu-smi" in refused.reasons[0]


def test_a_second_initialisation_is_fine(fake: Fake) -> None:
    fake.fail("aclInit", acl_library.REPEATED_INIT)
    acl.AclDriver()


def test_other_threads_set_their_device(fake: Fake) -> None:
    driver = acl.AclDriver()
    zero, one = driver.open(0), driver.open(1)
    fake.log()
    driver.mem_alloc(zero, 8)
    driver.mem_alloc(zero, 8)
    driver.mem_alloc(one, 8)
    assert [line for line in fake.log() if "SetDevice" in line] == ["aclrtSetDevice 0", "aclrtSetDevice 1"]


def test_bad_handles_and_grids_are_refused(fake: Fake) -> None:
    driver = acl.AclDriver()
    ctx = driver.open(0)
    stream = driver.stream_create(ctx)
    for call in (
        lambda: driver.mem_alloc(77, 8),
        lambda: driver.stream_synchronize(ctx, ctx),
        lambda: driver.event_record(ctx, stream, 0),
        lambda: driver.function(stream, "entry"),
        lambda: driver.release(99),
    ):
        with pytest.raises(InvalidArgument, match="live"):
            call()
    fn = driver.function(driver.module_load(ctx, Image(str(SOURCE).encode(), "path", "kernel")), "entry")
    with pytest.raises(InvalidArgument, match="one dimension"):
        driver.launch(fn, (1, 2, 1), (1, 1, 1), 0, [], stream)
    with pytest.raises(UnsupportedError, match="512"):
        driver.mem_alloc(ctx, 8, 1024)
    with pytest.raises(UnsupportedError, match="elf"):
        driver.module_load(ctx, Image(b"", "ptx", "kernel"))


def test_peer_memory(fake: Fake) -> None:
    driver = acl.AclDriver()
    peer = driver.extension(acl_peer.EXTENSION)
    assert peer is not None
    assert driver.extension("something else") is None
    peer.enable(0, 0)
    assert fake.log() == ["aclInit null"]
    peer.enable(0, 1)
    peer.enable(0, 1)
    assert fake.log() == ["aclrtDeviceCanAccessPeer 0 1", "aclrtSetDevice 0", "aclrtDeviceEnablePeerAccess 1 0"]
    with pytest.raises(UnsupportedError, match=r"(?s)device 0 .* device 5.*npu-smi"):
        peer.enable(0, 5)
    at = driver.mem_alloc(driver.open(0), 64)
    fake.log()
    key = peer.export(0, at, 64)
    assert peer.open(1, key) == at
    peer.close(1, key)
    lines = [line for line in fake.log() if "SetDevice" not in line]
    assert lines == ["aclrtIpcMemGetExportKey 64 65 1", "aclrtIpcMemImportByKey 1", "aclrtIpcMemClose key"]
    for bad in (b"", b"x" * 65, b"a\0b"):
        with pytest.raises(InvalidArgument, match="key"):
            peer.open(1, bad)
    with pytest.raises(InvalidArgument, match="nbytes"):
        peer.export(0, at, 0)


@pytest.mark.parametrize("name", acl_library.PEER_SYMBOLS)
def test_failures_of_peer_memory(fake: Fake, name: str) -> None:
    driver = acl.AclDriver()
    peer = driver.extension(acl_peer.EXTENSION)
    at = driver.mem_alloc(driver.open(0), 64)
    fake.fail(name, 107001)

    def all_of_them() -> None:
        peer.enable(0, 1)
        key = peer.export(0, at, 64)
        peer.open(1, key)
        peer.close(1, key)

    with pytest.raises(DriverError, match=rf"{name}.*107001.*ASCEND_RT_VISIBLE_DEVICES"):
        all_of_them()


def test_a_runtime_without_peers_claims_none(build: Callable[..., Path], use: Callable[[str | Path], None]) -> None:
    use(build("-DWITHOUT_PEERS"))
    driver = acl.AclDriver()
    assert driver.extension(acl_peer.EXTENSION) is None
    assert Cap.PEER_MEMORY not in driver.device_props(0).caps


def test_libraries_that_cannot_be_used(
    build: Callable[..., Path], use: Callable[[str | Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(build("-DTOO_OLD"))
    assert "lacks aclrtLaunchKernelWithHostArgs" in acl.why_unavailable()
    broken = tmp_path / "libascendcl.so"
    broken.write_bytes(b"no library")
    monkeypatch.setenv("ASCEND_HOME_PATH", "/opt/cann")
    use(broken)
    assert "/opt/cann" in acl.why_unavailable()
    monkeypatch.delenv("ASCEND_HOME_PATH")
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    use(tmp_path / "absent.so")
    with pytest.raises(BackendUnavailable, match=r"(?s)absent\.so.*ASCEND_HOME_PATH.*set_env\.sh"):
        acl.AclDriver()


class Npu(types.ModuleType):
    """What the backend uses of torch_npu."""

    class Stream:
        count = 0

        def __init__(self, device: object = None) -> None:
            Npu.Stream.count += 1
            self.npu_stream = 0x7000 + Npu.Stream.count

    def __init__(self) -> None:
        super().__init__("torch.npu")
        self.default = self.now = Npu.Stream()

    def is_available(self) -> bool:
        return True

    def current_stream(self, device: object = None) -> Npu.Stream:
        return self.now

    def default_stream(self, device: object = None) -> Npu.Stream:
        return self.default

    def set_stream(self, stream: Npu.Stream) -> None:
        self.now = stream


@pytest.fixture
def npu(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Npu:
    found = Npu()
    monkeypatch.setattr(torch, "npu", found, raising=False)
    monkeypatch.setattr(torch, "device", lambda kind, index=0: f"{kind}:{index}")  # torch knows no "npu" here
    return found


def test_kernels_run_on_the_streams_of_torch_npu(fake: Fake, npu: Npu) -> None:
    found = device.HardwareDevice(acl.AclDriver(), 1)
    assert found.spec == "ascend950:1"
    code = found.load(Image(b"\x7fELF!", "elf", "k"))
    code.launch("entry", (1, 1, 1), (1, 1, 1), [], stream=found.current_stream())
    assert f" {npu.default.npu_stream:#x} " in fake.log()[-1]
    mine = found.new_stream()
    found.set_stream(mine)
    assert found.current_stream() is mine
    event = found.new_event()
    event.record(found.current_stream())
    assert fake.log()[-1].endswith(f"{npu.now.npu_stream:#x}")
    found.set_stream(None)
    assert found.current_stream() is not mine
    found.synchronize()
    assert fake.log()[-1] == "aclrtSynchronizeDevice"
    found.close()
    assert not [line for line in fake.log() if "DestroyStream" in line]  # torch_npu's streams are its own


def test_hardware_devices_ask_for_peer_access(fake: Fake, npu: Npu) -> None:
    driver = acl.AclDriver()
    zero, one = device.HardwareDevice(driver, 0), device.HardwareDevice(driver, 1)
    fake.log()
    zero.enable_peer(one)
    assert "aclrtDeviceEnablePeerAccess 1 0" in fake.log()
    with pytest.raises(UnsupportedError, match="cannot reach"):
        zero.enable_peer(device.open_simulated(0))


def test_detection_with_a_runtime_but_without_torch_npu(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "davinci0").touch()
    probe = detect.probe(tmp_path)
    assert not probe.available
    assert "torch_npu is not installed" in probe.reasons[0]
    assert "deepinfer-ascend950[npu]" in (probe.fix or "")
