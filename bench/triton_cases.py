"""The small ops at the sizes they are measured at: arguments on the device, results, bytes that must move.

Every case moves 64 MB and more; bytes are each input once, each result once, indices and scales included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from deepinfer_triton import kernels
from deepinfer_triton.kernel import Program, TritonKernel, prepare

from deepinfer.hal import Device
from deepinfer.ops.flash_mla.formats import LAYOUTS, new_cache
from deepinfer.ops.rope import build_table
from deepinfer.registry import Call, Op, get_spec
from deepinfer.registry.dispatch import make_call

ROWS, COLS = 16384, 7168


@dataclass(frozen=True)
class Case:
    """One call: op, canonical arguments, results to write (none for ops in place) and bytes that must move."""

    name: str
    op: str
    args: tuple[Any, ...]
    out: tuple[torch.Tensor, ...]
    moved: float

    @property
    def written(self) -> tuple[torch.Tensor, ...]:
        """What the call writes: its results, or the cache it works in."""
        return self.out or (self.args[0],)

    def call(self, device: Device) -> Call:
        spec = get_spec(self.op)
        return make_call(spec, self.args, self.out or (None,) * len(spec.returns), device.torch_device)


def kernel_of(op: str) -> TritonKernel:
    return next(kernel for kernel in kernels() if kernel.op == op and isinstance(kernel, TritonKernel))


def launcher(device: Device, case: Case, programs: list[Program] | None = None) -> Callable[[], object]:
    """The launches of the case alone, without the dispatcher: what the device does is timed, not the host.

    They are those of the kernel that the registry chooses, or Triton `programs`.
    """
    stream = device.current_stream()
    if programs is None:
        entry = Op(get_spec(case.op)).resolve(device, case.args, case.out or None)
        bound = entry.kernel.bind(entry.plan, case.args, case.out)
        if bound is None or entry.plan.workspace:
            raise RuntimeError(f"{entry.kernel.name} of {case.name} prepares no launch")
        return partial(bound, stream)
    call = case.call(device)
    launches = [prepare(device, call, program).bind(case.args, case.out) for program in programs]

    def run() -> None:
        for launch in launches:
            launch(stream)

    return run


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def made(name: str, op: str, args: tuple[Any, ...], moved: float = 0.0) -> Case:
    """A case with its results allocated; by default every tensor moves once."""
    out = Op(get_spec(op))(*args)
    out = tuple(out) if isinstance(out, tuple) else (out,)
    total = float(sum(t.nbytes for t in (*args, *out) if isinstance(t, torch.Tensor)))
    return Case(name, op, args, out, moved or total)


def norms() -> Iterator[Case]:
    x, residual, weight = randn(ROWS, COLS), randn(ROWS, COLS), randn(COLS)
    yield made("norm.rms_norm", "norm.rms_norm", (x, weight, 1e-6))
    yield made("norm.fused_add_rms_norm", "norm.fused_add_rms_norm", (x, residual, weight, 1e-6))


def quantisers() -> Iterator[Case]:
    x = randn(ROWS, COLS)
    for block in ((1, 128), (1, 32), (128, 128), (32, 32)):
        for kind in ("f32", "ue8m0"):
            name = f"quant.quantize_fp8 {block[0]}x{block[1]} {kind}"
            yield made(name, "quant.quantize_fp8", (x, block, kind, 1e-4))
    packed = made("quant.quantize_mxfp4 1x32", "quant.quantize_mxfp4", (x, (1, 32)))
    yield packed
    data, scale = made("", "quant.quantize_fp8", (x, (128, 128), "f32", 1e-4)).out
    del x
    args = (data, scale, (128, 128), "f32", "e4m3", torch.bfloat16)
    yield made("quant.dequantize e4m3 128x128", "quant.dequantize", args)
    args = (*packed.out, (1, 32), "ue8m0", "e2m1", torch.bfloat16)
    yield made("quant.dequantize e2m1 1x32", "quant.dequantize", args)
    scale = torch.exp2(torch.randint(-20, 20, (1 << 18, 56), device="cuda").float())
    yield made("quant.pack_scales ue8m0x4_mn", "quant.pack_scales", (scale, "ue8m0x4_mn", 1, 1 << 18, None))


def caches() -> Iterator[Case]:
    for name, layout in LAYOUTS.items():
        width = layout.width or 576
        count = 131072 if width > 128 else 524288
        cache = new_cache(name, count // 64, 64, width if not layout.quantised else 0, device="cuda")
        pages = torch.randperm(count // 64, device="cuda") * 64  # whole pages in random order, as a block table has
        slots = (pages[:, None] + torch.arange(64, device="cuda")).flatten()
        rows = randn(count, width, dtype=torch.float32 if name == "f32" else torch.bfloat16)
        stored = layout.token_bytes or width * rows.element_size()
        moved = float(count * (stored + width * rows.element_size() + 8))
        write, read = "flash_mla.kv_cache_write", "flash_mla.kv_cache_read"
        Op(get_spec(write))(cache, rows, slots, name)
        yield Case(f"{write} {name}", write, (cache, rows, slots, name), (), moved)
        yield made(f"{read} {name}", read, (cache, slots, name, rows.dtype), moved)


def others() -> Iterator[Case]:
    x, table, positions = randn(4096, 128, 192), build_table(8192, 64, 1e4).cuda(), torch.arange(4096, device="cuda")
    for interleaved in (False, True):
        name = "rope.apply 192/64" + " interleaved" * interleaved
        yield made(name, "rope.apply", (x, positions, table, interleaved, False, 64), 4.0 * x.numel() + 4096 * 264)
    logits = randn(256, 129280, dtype=torch.float32)
    mask = torch.randint(-(2**31), 2**31, (256, 4040), device="cuda").int()
    yield made("sampling.apply_token_mask", "sampling.apply_token_mask", (logits, mask, None))
    gate_up, weights = randn(ROWS, 4096), torch.rand(ROWS, device="cuda")
    for kind, size in (("", 2.0), ("fp8_1x128", 1.0 + 4 / 128), ("mxfp8", 1.0 + 1 / 32)):
        name, moved = f"moe.swiglu_quantize {kind or 'plain'}", gate_up.numel() * (2.0 + size / 2) + weights.nbytes
        yield made(name, "moe.swiglu_quantize", (gate_up, weights, 10.0, kind), moved)
    scores, bias = randn(524288, 256, dtype=torch.float32), torch.randn(256, device="cuda")
    for tokens in (131072, 262144, 524288):
        name, rule = f"moe.route 256/8 of {tokens}", (8, "sigmoid", bias, 8, 4, "top2_sum", True, 1.0, 1e-20)
        yield made(name, "moe.route", (scores[:tokens], *rule))
    outs, lses = randn(4, 2, 1024, 16, 512), randn(4, 2, 16, 1024, dtype=torch.float32)
    yield made("flash_mla.merge_states 4", "flash_mla.merge_states", (outs, lses, None))
    rows, index = randn(32768, 7168), torch.randperm(32768, device="cuda").view(4096, 8).int()
    factors = torch.rand(32768, device="cuda")
    yield made("deep_ep.reduce 8", "deep_ep.reduce", (rows, index, factors, None, torch.bfloat16))


PARTS = (norms, quantisers, caches, others)
