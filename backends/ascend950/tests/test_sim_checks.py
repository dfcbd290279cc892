"""Every kind of mistake is found, named with kernel, core, pipe and source line; the corrected program passes."""

from __future__ import annotations

import pytest
import torch
from asc_harness import SimDriver, member, run

from deepinfer.errors import DriverError


def buffers() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(64, dtype=torch.float32), torch.empty(1024)


RACES = {
    "missing_mte2_to_v": "read after write on UB",
    "missing_v_to_mte3": "read after write on UB",
    "write_after_read": "write after read on UB",
    "buffer_ids": "on UB",
    "vector_barrier": "mem_bar",
}


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("kernel", RACES)
def test_unordered_accesses(sim: SimDriver, kernel: str, policy: int) -> None:
    x, y = buffers()
    sim.set_option("policy", policy)
    run("checks", kernel, [x], [y], [1])
    with pytest.raises(DriverError, match=RACES[kernel] if policy == 0 else "checks.asc"):
        run("checks", kernel, [x], [y], [0])


def test_a_race_names_both_places() -> None:
    x, y = buffers()
    with pytest.raises(
        DriverError,
        match=r"kernel missing_v_to_mte3, block 0, AIV0, pipe MTE3, asc_copy_ub2gm at checks\.asc:\d+.*"
        r"AIV0 pipe V at checks\.asc:\d+",
    ):
        run("checks", "missing_v_to_mte3", [x], [y], [0])


STOPS = {
    "double_set": "set_flag",
    "wait_without_set": "deadlock",
    "nested_lock": "already",
    "unlock_without_lock": "lock|get",
    "held_at_end": "held",
    "misaligned_load": "multiple of 32|aligned",
    "beyond_ub": "UB",
    "beyond_span": "outside|span|global memory",
    "write_to_read_only": "read-only|not writable|may not write",
    "unwritten": "never written",
    "array_in_kernel": r"not in UB but in no on-chip memory.*mem::ub<T>\(offset\)",
    "wrong_core_memory": "L1",
    "waits_for_wrong_core": "deadlock",
    "too_many_arrivals": "15",
}


@pytest.mark.parametrize("kernel", STOPS)
def test_stops(sim: SimDriver, kernel: str) -> None:
    sim.set_option("deadline_s", 5)
    x, y = buffers()
    with pytest.raises(DriverError, match=STOPS[kernel]) as caught:
        run("checks", kernel, [x], [y], [0])
    assert kernel in str(caught.value)


def test_a_deadlock_says_who_waits_for_what() -> None:
    x, y = buffers()
    with pytest.raises(DriverError, match=r"(?s)deadlock.*AIV1.*checks\.asc:\d+"):
        run("checks", "waits_for_wrong_core", [x], [y], [0])


def test_left_over_credit_is_a_warning(sim: SimDriver) -> None:
    x, y = buffers()
    run("checks", "credit_left", [x], [y])
    assert any("3" in line for line in sim.warnings())
    run("checks", "missing_v_to_mte3", [x], [y], [1])
    assert sim.warnings() == []


def test_left_over_flag_is_a_warning_or_a_stop(sim: SimDriver) -> None:
    """Public kernels that prime their empty buffers leave flags set; the device clears them between launches."""
    x, y = buffers()
    run("checks", "left_over_flag", [x], [y])
    assert any("V->MTE3 id 2" in line and "left_over_flag" in line for line in sim.warnings())
    sim.set_option("strict", 1)
    with pytest.raises(DriverError, match=r"flag V->MTE3 id 2 is still set"):
        run("checks", "left_over_flag", [x], [y])


def test_blocks_that_write_the_same_bytes() -> None:
    x, y = buffers()
    run("checks", "blocks_collide", [x], [y], [1], grid=4)
    assert torch.equal(y[:256], x.repeat(4))
    with pytest.raises(DriverError, match="write after write on global memory"):
        run("checks", "blocks_collide", [x], [y], [0], grid=4)


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_a_barrier_over_all_cores_orders_global_memory(sim: SimDriver, policy: int) -> None:
    x, y = buffers()
    sim.set_option("policy", policy)
    run("checks", "all_meet", [x], [y], [1], grid=4)
    with pytest.raises(DriverError, match=r"checks.asc"):
        run("checks", "all_meet", [x], [y], [0], grid=4)


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_flags_between_ranks(sim: SimDriver, policy: int) -> None:
    sim.set_option("policy", policy)
    x, window, flag, out = (
        torch.arange(64, dtype=torch.float32),
        torch.zeros(64),
        torch.zeros(8, dtype=torch.int32),
        torch.zeros(64),
    )

    def both(ordered: int) -> None:
        flag.zero_()
        sim.launch_group(
            [
                member("checks", "ranks_signal", 1, [x], [window, flag, out], [ordered, 1]),
                member("checks", "ranks_signal", 0, [x], [window, flag, out], [ordered, 0]),
            ]
        )

    both(1)
    assert torch.equal(out, x)
    with pytest.raises(DriverError, match="race"):
        both(0)


def test_polling_ends_at_the_deadline(sim: SimDriver) -> None:
    sim.set_option("deadline_s", 0.3)
    with pytest.raises(DriverError, match="TIMEOUT"):
        run("checks", "polls_forever", [torch.zeros(8, dtype=torch.int32)])


def test_argument_size_and_kernel_name_are_checked(sim: SimDriver) -> None:
    from asc_harness import context, function, module

    assert context()
    assert module("checks")
    with pytest.raises(DriverError, match=r"takes .* bytes of arguments, 0 given"):
        sim.launch(function("checks", "unwritten"), (1, 1, 1), (1, 1, 1), 0, [], 0)
    with pytest.raises(DriverError, match=r"the module has: .*unwritten"):
        function("checks", "no_such_kernel")
