"""Times shapes of the CUDA C++ kernel of `moe.route` on a GPU, beside the copy and the Triton kernel.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton:bench python bench/cuda_route_tune.py [32x32x54x1 ...]

A shape is experts per lane x warps x stages x CTAs on an SM. Results of each shape are compared with the Triton
kernel's. `--once` runs each shape once, for a profiler. Kinds of logits other than normal ones show what ties cost.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from deepinfer_cpu.plugin import create as create_cpu
from deepinfer_cuda.kernels.base import load
from deepinfer_cuda.kernels.route import SHAPES, Shape, prepare
from deepinfer_cuda.plugin import create
from sm90_gemm import sustained
from triton_bandwidth import copy_jobs

import deepinfer
from deepinfer.hal import Device
from deepinfer.registry import Op, get_spec, pin

EXPERTS = 256
KINDS = ("normal", "small-bias", "no-bias", "bf16-ties", "equal")


def arguments(kind: str, tokens: int) -> tuple[Any, ...]:
    logits, bias = torch.randn(tokens, EXPERTS, device="cuda"), torch.randn(EXPERTS, device="cuda")
    if kind == "small-bias":
        bias = bias * 0.05
    elif kind in ("no-bias", "bf16-ties", "equal"):
        bias = None
        logits = logits.bfloat16().float() if kind == "bf16-ties" else logits * (0 if kind == "equal" else 1)
    return logits, 8, "sigmoid", bias, 8, 4, "top2_sum", True, 1.0, 1e-20


def launcher(
    device: Device, shape: Shape, args: tuple[Any, ...], out: tuple[torch.Tensor, ...], dependent: bool
) -> Callable[[], None]:
    launch, stream = prepare(load(device, shape.unit), device, shape, args, out, dependent), device.current_stream()
    return lambda: launch(stream)


def compared(
    run: Callable[[], None], logits: torch.Tensor, out: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]
) -> str:
    """What differs from the Triton kernel's results; logits arrive by the kernel just before."""
    saved = logits.clone()
    for _ in range(3):
        logits.fill_(torch.nan)
        run()
        out[0].fill_(-7.0)
        out[1].fill_(-7)
        logits.copy_(saved)
        run()
    torch.cuda.synchronize()
    rows = (out[1] != wanted[1]).any(1).sum().item()
    return f"{rows} rows of ids, weights by {(out[0] - wanted[0]).abs().max().item():.2e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["x".join(map(str, vars(SHAPES[EXPERTS]).values()))])
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--serial", action="store_true", help="every launch waits for the end of the one before")
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    options = parser.parse_args()
    deepinfer.register_backend("cuda", create)
    deepinfer.register_backend("cpu", create_cpu)
    device = deepinfer.set_backend("cuda:0")
    shapes = {text: Shape(*map(int, text.split("x"))) for text in options.shapes}
    copy = copy_jobs({"copy": 4.7e8})["copy"]
    op = Op(get_spec("moe.route"))
    for kind in options.kinds:
        torch.manual_seed(0)
        args = arguments(kind, options.tokens)
        with pin(device, "moe.route", "triton_route"):
            wanted = op(*args)
        out = torch.empty_like(wanted[0]), torch.empty_like(wanted[1])
        calls: dict[str, Callable[[], object]] = {"copy": copy[0]}
        for name, shape in shapes.items():
            calls[name] = launcher(device, shape, args, out, not options.serial)
            if options.once:
                calls[name]()
                torch.cuda.synchronize()
                continue
            print(f"{kind} {name}: differs in {compared(calls[name], args[0], out, wanted)}", flush=True)
        if options.once:
            continue
        times = {name: statistics.median(found) for name, found in sustained(calls, options.rounds).items()}
        for name in shapes:
            share = options.tokens * (4.0 * EXPERTS + 64) / times[name] / (copy[1] / times["copy"])
            print(f"{kind} {name}: {times[name]:.2f} us, {share:.4f} of copy", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
