"""Microbenchmarks: timing states on a device with a known clock, rows, ceilings, comparison, picture."""

from __future__ import annotations

import json
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from deepinfer import bench
from deepinfer.bench import ceilings, rows, timing
from deepinfer.bench.timing import Sample
from deepinfer.errors import BackendUnavailable, InvalidArgument
from deepinfer.hal import device as open_device
from deepinfer.hal.device import Event, Stream
from deepinfer.hal.null import NullDevice
from deepinfer.hal.types import Cap, DeviceProps, DriverKind
from deepinfer.registry import Cost, Op, get_spec


class ClockEvent(Event):
    def __init__(self, device: ClockDevice) -> None:
        self.device, self.at = device, 0.0

    def record(self, stream: Stream) -> None:
        self.at = self.device.now_us

    def synchronize(self) -> None:
        return None

    def elapsed_ms(self, stop: Event) -> float:
        assert isinstance(stop, ClockEvent)
        return (stop.at - self.at) / 1e3


class ClockDevice(NullDevice):
    """A device whose time moves only when a call says so."""

    def __init__(self, kind: DriverKind = DriverKind.HARDWARE) -> None:
        super().__init__(0)
        self.props = DeviceProps("clock", "clock", kind, caps=frozenset({Cap.DEVICE_TIMER}))
        self.now_us = 0.0

    def memory_info(self) -> tuple[int, int]:
        return 1 << 20, 1 << 20

    def new_event(self) -> Event:
        return ClockEvent(self)

    def work(self, microseconds: float) -> Callable[[], None]:
        def call() -> None:
            self.now_us += microseconds

        return call


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PREHEAT_S": 0.001, "REST_S": 0.0, "WALL_S": 0.02, "WALL_WARM_S": 0.001}.items():
        monkeypatch.setattr(timing, name, value)
    monkeypatch.setattr(ceilings, "HOST_COPY", 1 << 20)
    monkeypatch.setattr(ceilings, "HOST_SIZE", 64)


@pytest.mark.parametrize("state", ["sust", "cool"])
def test_device_clock_gives_the_time_of_one_call(state: str) -> None:
    device = ClockDevice()
    sample = timing.measure(device, [device.work(120.0)], state)
    assert sample.clock == "device"
    assert sample.times_us == pytest.approx([120.0] * len(sample.times_us))
    assert len(sample.times_us) == (timing.ROUNDS if state == "sust" else timing.COOL_CALLS)


def test_calls_rotate_over_input_sets() -> None:
    device = ClockDevice()
    sample = timing.measure(device, [device.work(100.0), device.work(300.0)], "sust")
    assert sample.quantile(0.5) == pytest.approx(200.0, rel=0.01)


def test_simulated_time_is_called_modelled() -> None:
    device = ClockDevice(DriverKind.SIMULATOR)
    assert timing.measure(device, [device.work(50.0)], "sust").clock == "model"


def test_wall_clock_counts_calls() -> None:
    calls: list[int] = []
    sample = timing.measure(NullDevice(0), [lambda: calls.append(1)], "sust")
    assert sample.clock == "wall"
    assert timing.WALL_MIN <= len(sample.times_us) <= timing.WALL_MAX


def test_quantiles_interpolate() -> None:
    sample = Sample((1.0, 2.0, 3.0, 4.0, 5.0), "wall")
    assert [sample.quantile(share) for share in (0.0, 0.1, 0.5, 0.9, 1.0)] == pytest.approx([1.0, 1.4, 3.0, 4.6, 5.0])
    assert Sample((7.0,), "wall").quantile(0.9) == 7.0


def test_floor_is_the_larger_of_bytes_and_arithmetic() -> None:
    limit = ceilings.Ceilings(1e12, {"bf16": 1e14, "fp8": 2e14}, "given")
    assert limit.floor_us(Cost(1e12, 1e6), "bf16") == pytest.approx(1e4)
    assert limit.floor_us(Cost(1e12, 1e6), "fp8") == pytest.approx(5e3)
    assert limit.floor_us(Cost(1e6, 1e9), "fp8") == pytest.approx(1e3)
    assert limit.floor_us(Cost(1e12, 1e6), "f32") == pytest.approx(1e4)  # a unit that is not given counts as bf16


def test_unit_is_that_of_the_activations() -> None:
    e4m3 = torch.zeros(1).to(torch.float8_e4m3fn)
    assert ceilings.unit_of({"a": e4m3, "scale": torch.ones(1)}) == "fp8"
    assert ceilings.unit_of({"n": 3, "q": torch.zeros(1).bfloat16(), "kv": torch.zeros(1, dtype=torch.uint8)}) == "bf16"
    assert ceilings.unit_of({"ids": torch.zeros(1, dtype=torch.int32)}) == "f32"


@pytest.mark.parametrize("text", ["{", "{}", '{"bandwidth": 0, "flops": {"bf16": 1}, "source": ""}',
                                  '{"bandwidth": 1, "flops": {"f32": 1}, "source": ""}'])
def test_bad_ceilings_name_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InvalidArgument, match=r"bad\.json"):
        ceilings.load(path)


def test_run_on_cpu_makes_complete_rows(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "rows.jsonl"
    seen: list[dict[str, Any]] = []
    found = bench.run("cpu", ops=["deep_gmm.gemm"], cases=["M=8,*dtype=bf16"], out=out, progress=seen.append)
    assert found == seen == rows.read(out)
    assert found
    for row in found:
        assert set(row) == set(rows.FIELDS)
        assert row["clock"] == "wall"
        assert row["driver_kind"] == "host"
        assert row["p10"] <= row["median_us"] <= row["p90"]
        assert row["params"]["M"] == 8
        assert row["roofline"] > 0
        assert row["case"] == ",".join(f"{key}={value}" for key, value in row["params"].items())


def test_run_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InvalidArgument, match="state"):
        bench.run("cpu", state="hot")
    with pytest.raises(InvalidArgument, match="ops"):
        bench.run("cpu", ops=["no.such"])
    with pytest.raises(BackendUnavailable):
        bench.run("nowhere")


def test_fallback_is_not_timed(caplog: pytest.LogCaptureFixture) -> None:
    assert bench.run("null", ops=["deep_gmm.gemm"], cases=["M=8,*dtype=bf16"]) == []
    assert "left out" in caplog.text


def row(case: str = "M=8", median: float = 100.0, spread: float = 1.0, **other: Any) -> dict[str, Any]:
    base = {
        "op": "deep_gmm.gemm", "params": {"M": 8}, "case": case, "kernel": "k", "device": "d", "driver_kind": "host",
        "clock": "wall", "state": "sust", "median_us": median, "p10": median - spread, "p90": median + spread, "n": 9,
        "gbps": 1.0, "tflops": 0.1, "roofline": 0.5, "commit": "", "versions": {},
    }
    return base | other


def files(folder: Path, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> tuple[Path, Path]:
    paths = folder / "before.jsonl", folder / "after.jsonl"
    for path, found in zip(paths, (before, after), strict=True):
        rows.append(path, found)
    return paths


@pytest.mark.parametrize(
    ("after", "spread", "verdict"),
    [(100.0, 1.0, "same"), (104.0, 1.0, "same"), (120.0, 1.0, "slower"), (120.0, 30.0, "same"), (80.0, 1.0, "faster")],
)
def test_compare_verdicts(tmp_path: Path, after: float, spread: float, verdict: str) -> None:
    result = bench.compare(*files(tmp_path, [row()], [row(median=after, spread=spread)]), threshold=0.05)
    assert [one["verdict"] for one in result.rows] == [verdict]
    assert result.ok is (verdict != "slower")


def test_compare_lists_missing_and_new(tmp_path: Path) -> None:
    result = bench.compare(*files(tmp_path, [row(), row("M=9")], [row(), row("M=10")]))
    assert result.verdicts() == {"same": 1, "missing": 1, "new": 1}
    assert not result.ok


def test_compare_takes_the_last_of_repeated_rows(tmp_path: Path) -> None:
    result = bench.compare(*files(tmp_path, [row(median=500.0), row()], [row()]))
    assert result.rows[0]["ratio"] == 1.0


def test_compare_refuses_unrelated_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no case in common"):
        bench.compare(*files(tmp_path, [row(state="sust")], [row(state="cool")]))
    with pytest.raises(InvalidArgument, match="threshold"):
        bench.compare(*files(tmp_path, [row()], [row()]), threshold=-1)


@pytest.mark.parametrize(
    ("change", "mention"),
    [({"clock": "sundial"}, "clock"), ({"state": "hot"}, "state"), ({"median_us": 0}, "median_us"),
     ({"extra": 1}, "extra"), ({"clock": "model"}, "roofline"), ({"op": 7}, "op"), ({"case": None}, "case"),
     ({"p10": "fast"}, "p10"), ({"median_us": True}, "median_us"), ({"roofline": "all"}, "roofline"),
     ({"gbps": -1.0}, "gbps"), ({"median_us": float("inf")}, "median_us")],
)
def test_bad_rows_are_refused_by_field(tmp_path: Path, change: dict[str, Any], mention: str) -> None:
    with pytest.raises(InvalidArgument, match=mention):
        rows.append(tmp_path / "x.jsonl", [row(**change)])
    (tmp_path / "y.jsonl").write_text(json.dumps(row(**change)) + "\n", "utf-8")
    with pytest.raises(InvalidArgument, match=r"y\.jsonl:1"):
        rows.read(tmp_path / "y.jsonl")


@pytest.mark.parametrize("line", ["[" * 200_000, '{"n": ' + "9" * 5000 + "}", "{", "7", '"text"'])
def test_lines_that_are_no_rows_name_file_and_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(row()) + "\n" + line + "\n", "utf-8")
    with pytest.raises(InvalidArgument, match=r"x\.jsonl:2"):
        rows.read(tmp_path / "x.jsonl")


def test_rows_without_a_spread_are_compared_by_their_medians(tmp_path: Path) -> None:
    before, after = files(tmp_path, [row(p10=None, p90=None)], [row(median=900.0) | {"p10": None, "p90": None}])
    assert bench.compare(before, after).verdicts() == {"slower": 1}


def test_picture_is_an_svg_with_one_bar_per_case(tmp_path: Path) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "out" / "rows.svg"
    rows.append(source, [row("M=8 & <N>"), row("M=9"), row("M=9", median=90.0), row("x", clock="model", roofline=None)])
    bench.picture(source, target)
    tree = ElementTree.parse(target)
    bars = [node for node in tree.iter() if node.get("class") == "bar"]
    assert len(bars) == 2
    texts = {node.text for node in tree.iter() if node.get("class") == "case"}
    assert texts == {"M=8 & <N>", "M=9"}


def test_picture_needs_a_measured_row(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    rows.append(source, [row(clock="model", roofline=None)])
    with pytest.raises(InvalidArgument, match="no measured row"):
        bench.picture(source, tmp_path / "x.svg")


def test_shipped_ceilings_and_baselines_are_readable() -> None:
    root = Path(__file__).resolve().parents[3] / "bench"
    for path in (root / "ceilings").glob("*.json"):
        assert ceilings.load(path).bandwidth > 1e9
    baseline = rows.read(root / "baselines" / "cpu.jsonl")
    assert {one["device"] for one in baseline}
    assert len({one["op"] for one in baseline}) >= 8


def test_resolve_hit_costs_little_more_than_reading_the_metadata() -> None:
    """Exact figures are bench/dispatch_overhead.py's; a ratio of best times also holds on a busy machine."""
    device = open_device("cpu")
    op = Op(get_spec("norm.rms_norm"))
    args = (torch.randn(4, 64), torch.randn(64), 1e-6)
    op.resolve(device, args)

    def metadata() -> int:  # what the key of a resolved call is made of
        return hash(tuple((a.shape, a.dtype, a.stride(), a.device, a.data_ptr() & 15, a.is_neg()) for a in args[:2]))

    def resolve() -> object:
        return op.resolve(device, args)

    # in turns, so that both meet the same quiet moments
    times = [(timeit.timeit(resolve, number=200), timeit.timeit(metadata, number=200)) for _ in range(60)]
    cost, bare = (min(side) for side in zip(*times, strict=True))
    assert cost < 1.75 * bare, f"{cost / bare:.2f} times"
