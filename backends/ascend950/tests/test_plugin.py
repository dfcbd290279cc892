"""Detection with fake file systems, the plugin contract, command builders, and clear refusals without hardware."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from deepinfer_ascend950 import detect
from deepinfer_ascend950.drivers import acl
from deepinfer_ascend950.plugin import create
from deepinfer_ascend950.toolchain import bisheng, gxx
from deepinfer_ascend950.toolchain.sources import sim_build

import deepinfer.hal as hal
from deepinfer.errors import BackendUnavailable, InvalidArgument
from deepinfer.hal import Arg, Span
from deepinfer.jit import CompileError


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ((), 0),
        (("dev/davinci0", "dev/davinci1", "dev/davinci_manager"), 2),
        (("dev/davinci_manager",), 1),
        (("dev/davinci_other",), 0),
        (("sys/class/ubcore/udma3/device/ub_totalues=5",), 1),
        (("sys/class/ubcore/udma3/device/ub_totalues=0", "sys/class/ubcore/udma4/device/ub_totalues=x"), 0),
    ],
)
def test_device_nodes(tmp_path: Path, files: tuple[str, ...], count: int) -> None:
    for entry in files:
        name, _, text = entry.partition("=")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert detect.device_nodes(tmp_path).count == count


def test_nothing_is_imported_before_a_node_was_seen(tmp_path: Path) -> None:
    probe = detect.probe(tmp_path)
    assert not probe.available
    assert "no Ascend device node" in probe.reasons[0]
    assert probe.fix
    assert "torch_npu" not in sys.modules


def test_nodes_without_the_runtime_say_so(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "davinci0").touch()
    probe = detect.probe(tmp_path)
    if acl.why_unavailable():
        assert not probe.available
        assert "libascendcl.so" in " ".join(probe.reasons)


def test_plugin_contract() -> None:
    backend = create()
    assert backend.name == "ascend950"
    assert "ascend" in backend.aliases
    assert backend.drivers == ("", "sim")
    assert backend.probe("sim").available
    assert len({(k.op, k.name) for k in backend.kernels()}) == len(backend.kernels())
    with pytest.raises(InvalidArgument, match="ascend950"):
        backend.open(0, "sim", arch="ascend910")


def test_hardware_is_refused_with_a_reason_where_there_is_none() -> None:
    if not detect.probe().available:
        with pytest.raises(BackendUnavailable, match="no Ascend"):
            create().open(0)


def test_importing_the_plugin_loads_nothing_heavy() -> None:
    code = (
        "import sys; from deepinfer_ascend950.plugin import create; create().probe();"
        "heavy = ('torch_npu', 'deepinfer_ascend950.ops', 'deepinfer_ascend950.device');"
        "print([m for m in sys.modules if m.startswith(heavy)])"
    )
    root = Path(detect.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(root), "PATH": ""},
    )
    assert done.stdout.strip() == "[]"


def test_commands_are_pure_functions_of_their_arguments() -> None:
    line = bisheng.compile_command("bisheng", "k.asc", "k.o", ("inc",), ("-DX=1",))
    assert line[0] == "bisheng"
    assert "--npu-arch=dav-3510" in line
    assert line[-5:] == ["-x", "asc", "k.asc", "-o", "k.o"]
    assert "-DX=1" in line
    assert bisheng.link_command("ld.lld", ("a.o", "b.o"), "k")[-4:] == ["a.o", "b.o", "-o", "k"]
    assert bisheng.include_dirs(Path("/cann"), "aarch64") == (
        "/cann/aarch64-linux/include",
        "/cann/aarch64-linux/asc/include",
    )
    assert bisheng.toolkit({"ASCEND_TOOLKIT_HOME": "/cann"}) == Path("/cann")
    assert bisheng.toolkit({}, ()) is None
    line = gxx.command("g++", "k.asc", "k.so", ("inc",))
    assert "-fno-strict-aliasing" in line
    assert not any("fast-math" in flag or "march=native" in flag for flag in line)


def test_missing_vendor_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="no_such_program"):
        bisheng.find("no_such_program", tmp_path)


def test_compile_errors_carry_the_log() -> None:
    broken = sim_build("gemm_plain", ("-DDEEPINFER_MUTANT=oops",))
    with pytest.raises(CompileError, match="oops"):
        gxx.GxxCompiler().compile(broken)


def test_argument_block_of_the_hardware() -> None:
    args = [
        Arg.pointer(0x1122, Span(0x1122, 8)),
        Arg(b"\1\0\0\0"),
        Arg(b"\2\0\0\0\0\0\0\0"),
        Arg(b"", Span(0, 4)),
        Arg(b"\3\0\0\0"),
    ]
    block = acl.pack(args)
    assert len(block) == 32
    assert block[:2] == b"\x22\x11"
    assert block[8] == 1
    assert block[16] == 2
    assert block[24] == 3


def test_devices_are_separate_and_named() -> None:
    with hal.use_backend("ascend950/sim:3") as device:
        assert device.spec == "ascend950/sim:3"
        assert device.simulated
        assert device.torch_device == torch.device("cpu")
