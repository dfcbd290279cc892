"""Two devices of one process: peer memory, events across devices, streams, graphs and ops on the second, bandwidth.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton:bench python bench/cuda_peer.py --out rows.jsonl

torch's current device stays the first one all the time: what belongs to the second has to find it by itself. Each check
prints its name and what it found; bandwidths count the bytes that cross the link once. `--backend cuda_sm90/sim`
rehearses the checks on simulated devices, which have no graphs and no link.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from deepinfer_cpu.plugin import create as create_cpu
from deepinfer_cuda.kernels import pack_rows
from deepinfer_cuda.kernels.base import load
from deepinfer_cuda.plugin import create
from deepinfer_triton.kernel import prepare
from triton_cases import kernel_of

import deepinfer
from deepinfer.errors import DeepInferError
from deepinfer.hal import Cap, Device
from deepinfer.ops import deep_gmm, norm, quant
from deepinfer.registry import get_spec
from deepinfer.registry.dispatch import make_call

Pair = tuple[Device, Device]
ROWS, COLS = 16384, 7168


def refused(call: Callable[[], object]) -> str:
    """The message of the error that `call` raises; "" if it raises none."""
    try:
        call()
    except DeepInferError as error:
        return " ".join(str(error).split())
    return ""


def refusals(pair: Pair) -> Iterator[tuple[str, object]]:
    first, host = pair[0], deepinfer.device("cpu")
    yield "refuses the cpu", "cannot reach the memory of cpu" in refused(lambda: first.enable_peer(host))
    yield "the cpu refuses", "PEER_MEMORY" in refused(lambda: host.enable_peer(first))
    if not first.simulated:
        driver: Any = first.raw_driver  # type: ignore[attr-defined]
        yield "refuses itself", "device 0" in refused(lambda: driver.enable_peer(1, 1))
        yield "refuses no context", "must be a context" in refused(lambda: driver.enable_peer(1, 99))
        yield "has no third device", bool(refused(lambda: deepinfer.device(f"cuda:{torch.cuda.device_count()}")))


def move(device: Device, source: torch.Tensor, target: torch.Tensor) -> None:
    """Rows of `source` to the wider ones of `target`, by a kernel of `device`."""
    pack_rows.prepare(load(device, pack_rows.UNIT), device, source, target)(device.current_stream())


def peer_access(pair: Pair) -> Iterator[tuple[str, object]]:
    """Kernels of each device read and write memory of the other, in both directions."""
    generator = torch.Generator().manual_seed(1)
    for here, there in (pair, pair[::-1]):
        here.enable_peer(there)
        here.enable_peer(there)
        values = torch.randn(70, 9, generator=generator).bfloat16()
        local, remote = here.empty((70, 16), torch.bfloat16), there.empty((70, 16), torch.bfloat16)
        source = there.to_device(values)
        there.synchronize()
        move(here, source, local)
        here.synchronize()
        yield f"{here.spec} reads {there.spec}", torch.equal(here.to_host(local)[:, :9], values)
        move(here, here.to_device(values), remote)
        here.synchronize()
        yield f"{here.spec} writes {there.spec}", torch.equal(there.to_host(remote)[:, :9], values)


def event_order(pair: Pair) -> Iterator[tuple[str, object]]:
    """A stream of the second device waits for a long run of work on the first."""
    first, second = pair
    lines = [first.to_device(torch.full((256, 512), value).bfloat16()) for value in (3.0, 0.0)]
    target = second.to_device(torch.zeros(256, 512).bfloat16())
    done, stream, before = first.new_event(), second.new_stream(), second.current_stream()
    for step in range(3 if first.simulated else 401):  # an odd number: the last one writes lines[1]
        move(first, lines[step % 2], lines[1 - step % 2])
    done.record(first.current_stream())
    stream.wait(done)
    second.set_stream(stream)
    move(second, lines[1], target)
    second.set_stream(before)
    stream.synchronize()
    yield "a stream waits for the other device", bool((second.to_host(target) == 3).all())
    start, stop = second.new_event(), second.new_event()
    start.record(second.current_stream())
    move(second, lines[0], target)
    stop.record(second.current_stream())
    stop.synchronize()
    yield "events time the second device", start.elapsed_ms(stop) > 0


def ops_on(device: Device) -> list[torch.Tensor]:
    """Results of one op of each kind on `device`, on the host."""
    generator = torch.Generator().manual_seed(2)
    x, w = (torch.randn(*s, generator=generator).bfloat16() for s in ((96, 512), (128, 512)))
    with deepinfer.use_backend(device), deepinfer.fallback("error"):
        a, b = device.to_device(x), device.to_device(w)
        coded, pairs = quant.quantize_fp8(a), quant.quantize_mxfp4(a)
        made = [norm.rms_norm(a, b[0], 1e-6), coded.data, coded.scale, pairs.data, pairs.scale, deep_gmm.gemm(a, b)]
        device.synchronize()
    return [device.to_host(t).view(torch.uint8) for t in made]


def ops_agree(pair: Pair) -> Iterator[tuple[str, object]]:
    first, second = (ops_on(device) for device in pair)
    yield "ops give equal bits on both", all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    found: list[list[torch.Tensor]] = []
    worker = threading.Thread(target=lambda: found.append(ops_on(pair[1])))
    worker.start()
    worker.join()
    same = [torch.equal(a, b) for made in found for a, b in zip(first, made, strict=True)]
    yield "ops run in a new thread", bool(same) and all(same)


def graphs(pair: Pair) -> Iterator[tuple[str, object]]:
    """A graph per device, captured and replayed in turn while the first device is current."""
    if not all(device.supports(Cap.GRAPHS) for device in pair):
        return
    made = []
    for device in pair:
        x, weight = device.to_device(torch.ones(64, 512).bfloat16()), device.to_device(torch.ones(512).bfloat16())
        y = torch.empty_like(x)
        with deepinfer.use_backend(device):
            norm.rms_norm(x, weight, 0.0, out=y)
            device.synchronize()
            graph = device.graph()
            with graph:
                norm.rms_norm(x, weight, 0.0, out=y)
                y.mul_(2)
        made.append((device, graph, x, y))
    for value in (3.0, -5.0):
        for device, graph, x, y in made:
            x.fill_(value)
            graph.replay()
            device.synchronize()
            wanted = 2.0 if value > 0 else -2.0
            yield f"a graph on {device.spec} replays {value}", bool((device.to_host(y) == wanted).all())


def bandwidths(pair: Pair, rounds: int) -> Iterator[dict[str, Any]]:
    """GB/s over the link: copies by the driver, and a kernel whose operand or result lies on the other device."""
    first, second = pair
    a, b = (torch.randn(ROWS, COLS, device=d.torch_device).bfloat16() for d in pair)
    c, weight = torch.empty_like(b), torch.ones(COLS, device=b.device).bfloat16()
    spec, kernel = get_spec("norm.rms_norm"), kernel_of("norm.rms_norm")

    def normed(source: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
        """Planned for operands of the second device; then the launch is given others of the same shape."""
        call = make_call(spec, (b, weight, 1e-6), (c,), second.torch_device)
        launches = [prepare(second, call, p).bind((source, weight, 1e-6), (target,)) for p in kernel.programs(call)]
        return lambda: [launch(second.current_stream()) for launch in launches]

    jobs: dict[str, Callable[[], object]] = {
        "copy local": lambda: c.copy_(b), "copy 0 to 1": lambda: c.copy_(a), "copy 1 to 0": lambda: a.copy_(b),
        "rms_norm local": normed(b, c), "rms_norm reads 0": normed(a, c), "rms_norm writes 0": normed(b, a),
    }
    for name, job in jobs.items():
        for _ in range(5):
            job()
        first.synchronize()
        second.synchronize()
        times = []
        device = first if name == "copy 0 to 1" else second  # torch copies on the source's stream
        for _ in range(rounds):
            start, stop = device.new_event(), device.new_event()
            start.record(device.current_stream())
            for _ in range(10):
                job()
            stop.record(device.current_stream())
            stop.synchronize()
            times.append(start.elapsed_ms(stop) * 100)
        median = statistics.median(times)
        yield {"op": "hal.peer", "case": name, "clock": "device", "median_us": round(median, 2), "n": rounds,
               "mbytes": round(a.nbytes * 1e-6, 1), "gbps": round(a.nbytes / median * 1e-3, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    deepinfer.register_backend("cuda", create)
    deepinfer.register_backend("cpu", create_cpu)
    pair = deepinfer.device(f"{options.backend}:0"), deepinfer.device(f"{options.backend}:1")
    hardware = not pair[0].simulated
    rows: list[dict[str, Any]] = []
    for part in (refusals, peer_access, event_order, ops_agree, graphs):
        try:
            for name, ok in part(pair):
                print(f"{part.__name__}: {name}: {'ok' if ok else 'FAILED'}", flush=True)
                rows.append({"op": "hal.peer", "case": name, "ok": bool(ok)})
        except Exception as error:  # the other parts still run
            print(f"{part.__name__}: {type(error).__name__}: {error}", flush=True)
            rows.append({"op": "hal.peer", "case": part.__name__, "ok": False})
        if hardware and torch.cuda.current_device() != 0:
            rows.append({"op": "hal.peer", "case": f"{part.__name__} leaves the current device", "ok": False})
            torch.cuda.set_device(0)
    failed = [row["case"] for row in rows if not row["ok"]]
    print("failed:", failed, flush=True)
    for row in bandwidths(pair, options.rounds) if hardware else ():
        print(row["case"], row["median_us"], "us", row["gbps"], "GB/s", flush=True)
        rows.append(row)
    if options.out:
        versions = {"torch": str(torch.__version__), "deepinfer": deepinfer.__version__}
        kind = "hardware" if hardware else "simulator"
        common = {"device": f"2 x {pair[0].props.name}", "driver_kind": kind, "commit": options.commit,
                  "versions": versions}
        options.out.write_text("".join(json.dumps({**row, **common}) + "\n" for row in rows))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
