"""The core from many threads at once: choosing devices, running ops, registering backends, first imports."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import pytest
import torch

import deepinfer
from deepinfer.errors import BackendUnavailable, DeepInferError
from deepinfer.hal import Device, register_backend, unregister_backend
from deepinfer.hal.null import NullBackend, NullDevice
from deepinfer.ops import norm
from deepinfer.registry import Kernel, Op, get_spec, pin
from deepinfer.registry.fallback import note
from deepinfer.registry.kernels import candidates

SECONDS = 120


def together(jobs: Sequence[Callable[[], None]]) -> None:
    """Run every job in a thread of its own, all started at one moment; the first error is raised here."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(jobs))

    def work(job: Callable[[], None]) -> None:
        barrier.wait(SECONDS)
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


class MineDevice(NullDevice):
    """A null device under the name of `Mine`."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.backend = "mine"


class Mine(NullBackend):
    """A backend that tests register and take away."""

    name = "mine"

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        return MineDevice(index)


def _norm(width: int) -> None:
    x = torch.full((2, width), 3.0)
    torch.testing.assert_close(norm.rms_norm(x, torch.ones(width), 0.0), torch.ones(2, width))


def test_process_choice_and_context_choice_do_not_mix() -> None:
    def process() -> None:
        for i in range(60):
            deepinfer.set_backend(("cpu", "null")[i % 2])
            _norm(3 + i % 5)

    def context(name: str) -> Callable[[], None]:
        def run() -> None:
            for i in range(60):
                with deepinfer.use_backend(name) as device:
                    assert device.backend == name
                    assert deepinfer.current_device() is device
                    _norm(3 + i % 5)

        return run

    together([process, context("cpu"), context("null"), process, context("cpu"), context("null"), process, process])


def test_backends_come_and_go_while_ops_run() -> None:
    done = threading.Event()
    served: list[int] = []

    def flip() -> None:
        for _ in range(200):
            register_backend("mine", Mine)
            deepinfer.devices()
            unregister_backend("mine")
        done.set()

    def use() -> None:
        count = 0
        while not done.is_set():
            try:
                with deepinfer.use_backend("mine"):
                    _norm(4)
                count += 1
            except BackendUnavailable:
                continue
        served.append(count)

    def others() -> None:
        while not done.is_set():
            with deepinfer.use_backend("cpu"):
                _norm(5)

    together([flip, use, use, use, others, others])
    assert len(served) == 3


def test_a_backend_registered_again_replaces_devices_and_kernels() -> None:
    class Other(Mine):
        def kernels(self) -> Sequence[Kernel]:
            raise DeepInferError("asked the new backend")

    try:
        register_backend("mine", Mine)
        first = deepinfer.device("mine")
        with deepinfer.use_backend(first):
            _norm(4)
        register_backend("mine", Other)
        second = deepinfer.device("mine")
        assert second is not first
        with pytest.raises(DeepInferError, match="asked the new backend"):
            candidates(second, "norm.rms_norm")
        unregister_backend("mine")
        with pytest.raises(BackendUnavailable, match="mine"):
            deepinfer.device("mine")
    finally:
        unregister_backend("mine")


def test_one_warning_and_an_exact_count_of_fallbacks(caplog: pytest.LogCaptureFixture) -> None:
    device = deepinfer.device("null")
    device.statistics.clear()
    together([lambda: [note(device, "op", ["why"]) for _ in range(500)] and None] * 8)
    assert device.statistics["fallback:op"] == 4000
    assert sum("why" in record.message for record in caplog.records) == 1


def test_a_pin_belongs_to_its_thread() -> None:
    op = Op(get_spec("norm.rms_norm"))

    def names(count: int) -> set[str]:
        found = set()
        with deepinfer.use_backend("cpu") as device:
            for i in range(count):
                args = (torch.ones(2, 3 + i % 40), torch.ones(3 + i % 40), 0.0)
                op(*args)
                found.add(str(op.resolve(device, args).kernel.name))
        return found

    free_choice = names(1)
    assert free_choice != {"portable"}

    def pinned() -> None:
        for _ in range(20):
            with pin(deepinfer.device("cpu"), "norm.rms_norm", "portable"):
                assert names(20) == {"portable"}

    def free() -> None:
        assert names(400) == free_choice

    together([pinned, free, pinned, free])


def test_first_use_from_many_threads() -> None:
    code = """
import threading
barrier = threading.Barrier(8); errors = []
def op():
    import torch
    from deepinfer.ops import norm
    assert norm.rms_norm(torch.ones(1, 4), torch.ones(4)).shape == (1, 4)
def specs():
    from deepinfer.registry import all_specs
    assert len(all_specs()) > 20
def lazy():
    import deepinfer
    assert deepinfer.LLM and deepinfer.device("cpu") is deepinfer.device("cpu")
def work(job):
    barrier.wait()
    try: job()
    except BaseException as error: errors.append(repr(error))
threads = [threading.Thread(target=work, args=(job,)) for job in (op, specs, lazy, op, specs, lazy, op, op)]
[t.start() for t in threads]; [t.join() for t in threads]
assert not errors, errors
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
