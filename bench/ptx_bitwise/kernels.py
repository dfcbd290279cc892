"""Which whole kernels are recorded: the SM90 products with integer inputs, routing in CUDA C++, the Triton ops on their
own quick cases.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton:bench python -m ptx_bitwise.kernels

writes evidence/ptx_bitwise_kernels.npz. Kernels of the simulator's tests are added from their PTX files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ptx_bitwise.case import Buffer, Case, Map, poisoned
from ptx_bitwise.record import Recorder, load, save
from ptx_bitwise.stream import Stream

STORE = Path(__file__).parents[1] / "evidence" / "ptx_bitwise_kernels.npz"
FIXTURES = Path(__file__).parents[2] / "backends/cuda_sm10/tests/sim/kernels"
PER_OP = 2  # recorded cases of one Triton op
SIZES = 200, 40_000  # bytes of their tensors


def products(recorder: Recorder, tiles: Any) -> None:
    """Dense, grouped and masked products with small integers; every sum is exact. One launch per tile shape."""
    import torch

    from deepinfer.ops import deep_gmm

    generator = torch.Generator().manual_seed(1)
    ints = lambda *shape: torch.randint(-4, 5, shape, generator=generator).bfloat16()  # noqa: E731
    for index, tile in enumerate(tiles):
        m = 130 + index  # a shape of its own, for a plan of its own
        recorder.label = f"gemm {m}x136x200"
        only(tile, lambda m=m: deep_gmm.gemm(ints(m, 200), ints(136, 200)))
    recorder.label = "grouped_gemm 3 groups"
    deep_gmm.grouped_gemm(
        ints(80, 72),
        ints(3, 136, 72),
        torch.tensor([20, 0, 41], dtype=torch.int32),
        starts=torch.tensor([3, 30, 33], dtype=torch.int32),
        out=torch.full((80, 136), 9.0).bfloat16(),
    )
    recorder.label = "masked_grouped_gemm 2 groups"
    deep_gmm.masked_grouped_gemm(
        ints(2, 70, 72),
        ints(2, 136, 72),
        torch.tensor([65, 9], dtype=torch.int32),
        out=torch.full((2, 70, 136), 9.0).bfloat16(),
    )


def only(tile: Any, call: Any) -> None:
    """Calls with `tile` as the only choice of the kernel."""
    from deepinfer_cuda.kernels import KERNELS

    dense = next(k for k in KERNELS if k.name == "sm90_gemm_bf16")
    before, dense.tiles = dense.tiles, (tile,)
    try:
        call()
    finally:
        dense.tiles = before


def routes(recorder: Recorder) -> None:
    """Gates of 128 and 256 experts: groups and a bias, and few values, so that many ranks are equal."""
    import torch

    from deepinfer.ops import moe

    generator = torch.Generator().manual_seed(2)
    for experts in (128, 256):
        logits = torch.randn(9, experts, generator=generator)
        bias = torch.randn(experts, generator=generator)
        recorder.label = f"moe.route {experts} experts in 8 groups"
        moe.route(
            logits, 8, scoring="sigmoid", bias=bias, n_group=8, topk_group=4, group_score="top2_sum", scale=2.5
        )
        recorder.label = f"moe.route {experts} experts, equal ranks"
        moe.route(logits.round(), 6, scoring="sigmoid")


def triton_ops(recorder: Recorder, device: Any) -> None:
    """The first quick cases of every op that a Triton kernel takes."""
    import torch

    from deepinfer.registry import Op, all_specs
    from deepinfer.registry.dispatch import make_call
    from deepinfer.registry.kernels import candidates

    for spec in all_specs():
        kernels = [c for c in candidates(device, spec.name) if c.name.startswith("triton_")]
        taken = 0
        for case in spec.cases() if kernels else ():
            if "quick" not in case.tags or taken >= PER_OP:
                continue
            built = case.build()
            size = sum(v.numel() * v.element_size() for v in built.values() if isinstance(v, torch.Tensor))
            if not SIZES[0] <= size <= SIZES[1]:
                continue
            args = [built[p.name] for p in spec.params]
            call = make_call(spec, args, (None,) * len(spec.returns), device.torch_device)
            before = len(recorder.cases)
            if any(c.supports(device.props, call) for c in kernels):
                recorder.label = f"{spec.name} {case.id}"
                Op(spec)(*args)
                taken += len(recorder.cases) > before


def bf16(shape: tuple[int, int], seed: int) -> np.ndarray[Any, Any]:
    values = Stream(seed).integers(-4, 5, shape).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def fixtures() -> Iterator[Case]:
    """Kernels of the simulator's tests: a wgmma product with TMA, Triton's mma.sync product and RMS norm."""
    m, n, k = 64, 128, 512
    args = (
        Buffer(bf16((m, k), 1), hidden=True),
        Buffer(bf16((n, k), 2), hidden=True),
        Map(0, 9, (k, m), (2 * k,), (64, 64), 3),
        Map(1, 9, (k, n), (2 * k,), (64, 128), 3),
        Buffer(poisoned(m * n, np.uint32), True),
        n.to_bytes(4, "little"),
        k.to_bytes(4, "little"),
    )
    yield Case(
        "kernel/test sm90_gemm",
        "gemm",
        text("sm90_gemm"),
        args,
        (1, 1, 1),
        (160, 1, 1),
        smem=3 * 192 * 128,
        entry="gemm",
        family="kernel",
    )
    rng = Stream(3)
    a, b = rng.integers(-3, 4, (128, 96)).astype(np.float16), rng.integers(-3, 4, (96, 128)).astype(np.float16)
    tail = ((128).to_bytes(4, "little"), (96).to_bytes(4, "little"), bytes(8), bytes(8))
    args = (Buffer(a), Buffer(b), Buffer(poisoned(128 * 128, np.uint32), True), *tail)
    yield Case(
        "kernel/test triton_matmul",
        "matmul",
        text("triton_matmul_sm90"),
        args,
        (2, 2, 1),
        (128, 1, 1),
        smem=32768,
        entry="matmul",
        family="kernel",
    )
    x, w = (v.astype(np.float32).view(np.uint32) >> 16 for v in (4 * rng.random(4000) - 2, rng.random(1000) - 0.5))
    args = (
        Buffer(x.astype(np.uint16)),
        Buffer(w.astype(np.uint16)),
        Buffer(poisoned(4000, np.uint16), True),
        (1000).to_bytes(4, "little"),
        np.float32(1e-6).tobytes(),
        bytes(8),
        bytes(8),
    )
    yield Case(
        "kernel/test triton_rms_norm",
        "rms_norm",
        text("triton_rms_norm_sm90"),
        args,
        (4, 1, 1),
        (128, 1, 1),
        smem=1024,
        entry="rms_norm",
        family="kernel",
    )


def text(name: str) -> str:
    return (FIXTURES / f"{name}.ptx").read_text()


def cases() -> Iterator[Case]:
    """The recorded kernels and the test kernels."""
    if STORE.exists():
        yield from load(STORE)
    yield from fixtures()


def main() -> None:
    """Records."""
    import deepinfer_cuda.simdevice as simdevice
    import torch
    from deepinfer_cuda.kernels.gemm import TILES
    from deepinfer_cuda.plugin import create

    import deepinfer

    torch.set_num_threads(1)
    recorder = Recorder()
    simdevice.SimDriver = lambda: recorder  # type: ignore[assignment,misc]
    deepinfer.register_backend("cuda", create)
    device = deepinfer.set_backend("cuda_sm90/sim")
    products(recorder, TILES)
    routes(recorder)
    triton_ops(recorder, device)
    save(STORE, recorder.cases)
    for case in recorder.cases:
        print(case.name, len(case.ptx), sum(a.data.nbytes for a in case.args if isinstance(a, Buffer)))
    print(len(recorder.cases), "cases", STORE.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
