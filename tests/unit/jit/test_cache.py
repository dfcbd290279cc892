"""The build cache: keys, corruption, read-only and moved caches, many processes, a process killed half-way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import InvalidArgument
from deepinfer.jit import Build, BuildCache, CompileError, CompileForbidden, Progress, warmup

BASE = Build("kernel", "source", {"a.h": "1"}, ("-O3",), "sm_90a")


class CountingCompiler:
    """Returns the source in capitals and counts how often it was asked."""

    def __init__(self, version: str = "1") -> None:
        self.version, self.count = version, 0

    def identity(self) -> str:
        return f"fake {self.version}"

    def compile(self, build: Build) -> tuple[bytes, str]:
        self.count += 1
        if "error" in build.source:
            raise CompileError(build.name, "fake -c", "line 1: error")
        return build.source.upper().encode(), "log"


@pytest.mark.parametrize(
    "other",
    [
        replace(BASE, source="source2"), replace(BASE, headers={"a.h": "2"}), replace(BASE, headers={"b.h": "1"}),
        replace(BASE, flags=("-O2",)), replace(BASE, flags=()), replace(BASE, arch="sm_100a"), replace(BASE, fmt="ptx"),
        replace(BASE, flags=("-O3", "")), replace(BASE, source="", flags=("-O3", "source")),
    ],
)
def test_everything_that_decides_the_code_is_in_the_key(other: Build) -> None:
    assert BASE.key("c 1") != other.key("c 1")
    assert BASE.key("c 1") != BASE.key("c 2")
    assert BASE.key("c 1") == replace(BASE, name="renamed").key("c 1")


@given(st.lists(st.text(max_size=4), min_size=1, max_size=4), st.lists(st.text(max_size=4), min_size=1, max_size=4))
def test_flags_do_not_run_together(a: list[str], b: list[str]) -> None:
    same = replace(BASE, flags=tuple(a)).key("c") == replace(BASE, flags=tuple(b)).key("c")
    assert same == (a == b)


def test_hit_in_memory_and_on_disk(tmp_path: Path) -> None:
    compiler = CountingCompiler()
    cache = BuildCache([tmp_path])
    assert cache.get(BASE, compiler).image == b"SOURCE"
    assert not cache.get(BASE, compiler).cached
    fresh = BuildCache([tmp_path]).get(BASE, compiler)
    assert (fresh.image, fresh.cached, compiler.count) == (b"SOURCE", True, 1)
    assert BuildCache([tmp_path]).contains(BASE, compiler)


@pytest.mark.parametrize("damage", ["truncate", "meta", "no-meta", "garbage"])
def test_corrupt_entries_are_rebuilt(tmp_path: Path, damage: str) -> None:
    compiler = CountingCompiler()
    BuildCache([tmp_path]).get(BASE, compiler)
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    if damage == "truncate":
        (folder / "image").write_bytes(b"SOU")
    elif damage == "meta":
        (folder / "meta.json").write_text("[]")
    elif damage == "no-meta":
        (folder / "meta.json").unlink()
    else:
        (folder / "meta.json").write_text("{")
    assert BuildCache([tmp_path]).get(BASE, compiler).image == b"SOURCE"
    assert compiler.count == 2
    assert BuildCache([tmp_path], forbid_compile=True).get(BASE, compiler).cached
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp-")]


def test_moved_and_read_only_caches_serve(tmp_path: Path) -> None:
    compiler = CountingCompiler()
    BuildCache([tmp_path / "one"]).get(BASE, compiler)
    shutil.move(tmp_path / "one", tmp_path / "two")
    for path in (tmp_path / "two").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    cache = BuildCache([tmp_path / "two", tmp_path / "three"], forbid_compile=True)
    assert cache.get(BASE, compiler).cached
    assert compiler.count == 1


def test_forbidden_compilation_names_the_kernel(tmp_path: Path) -> None:
    with pytest.raises(CompileForbidden, match=r"kernel kernel for sm_90a .*copy the folder"):
        BuildCache([tmp_path], forbid_compile=True).get(BASE, CountingCompiler())


def test_without_a_writable_root_it_still_compiles(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    assert BuildCache([blocker / "sub"]).get(BASE, CountingCompiler()).image == b"SOURCE"


def test_bad_names_and_no_roots(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        BuildCache([tmp_path]).get(replace(BASE, name="../evil"), CountingCompiler())
    with pytest.raises(InvalidArgument):
        BuildCache([])


def test_threads_compile_once(tmp_path: Path) -> None:
    compiler, cache = CountingCompiler(), BuildCache([tmp_path])
    threads = [threading.Thread(target=cache.get, args=(BASE, compiler)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiler.count == 1


def test_warmup_reports_and_keeps_order(tmp_path: Path) -> None:
    builds = [replace(BASE, name=f"k{i}", source=f"s{i}") for i in range(5)]
    seen: list[Progress] = []
    images = warmup(BuildCache([tmp_path]), builds, CountingCompiler(), report=seen.append)
    assert [compiled.image for compiled in images] == [f"S{i}".encode() for i in range(5)]
    assert sorted(progress.done for progress in seen) == [1, 2, 3, 4, 5]


def test_warmup_finishes_the_rest_before_it_raises(tmp_path: Path) -> None:
    builds = [replace(BASE, name="bad", source="error"), replace(BASE, name="good", source="fine")]
    compiler, cache = CountingCompiler(), BuildCache([tmp_path])
    with pytest.raises(CompileError, match="bad"):
        warmup(cache, builds, compiler)
    assert cache.contains(builds[1], compiler)


WORKER = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from deepinfer.jit import Build, BuildCache

    class Slow:
        def identity(self): return "slow 1"
        def compile(self, build):
            with open(sys.argv[2], "a") as log:
                log.write(f"{build.name} {os.getpid()}\\n")
            time.sleep(float(sys.argv[3]))
            return build.source.encode() * 1000, ""

    cache = BuildCache([Path(sys.argv[1])])
    for i in range(int(sys.argv[4])):
        assert cache.get(Build(f"k{i}", f"s{i}"), Slow()).image == f"s{i}".encode() * 1000
    """
)


def _start(root: Path, log: Path, seconds: float, kernels: int) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", WORKER, str(root), str(log), str(seconds), str(kernels)]
    return subprocess.Popen(argv, stderr=subprocess.PIPE)


def test_sixteen_processes_on_an_empty_cache_compile_each_kernel_once(tmp_path: Path) -> None:
    """C78."""
    root, log = tmp_path / "cache", tmp_path / "log"
    log.touch()
    workers = [_start(root, log, 0.05, 3) for _ in range(16)]
    errors = [worker.communicate()[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 16, errors
    assert sorted(line.split()[0] for line in log.read_text().splitlines()) == ["k0", "k1", "k2"]


def test_a_process_killed_half_way_harms_nobody(tmp_path: Path) -> None:
    """C78."""
    root, log = tmp_path / "cache", tmp_path / "log"
    log.touch()
    victim = _start(root, log, 60, 1)
    while not log.read_text():
        assert victim.poll() is None
    waiting = _start(root, log, 0.01, 1)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    _, error = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, error
    if victim.stderr:
        victim.stderr.close()
