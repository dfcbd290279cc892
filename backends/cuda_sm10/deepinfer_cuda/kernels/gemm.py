"""`deep_gmm.gemm` in bf16 on SM90: which calls it takes, which tile it picks, how it is launched."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.hal import Arg, Device, DeviceProps, Executable, Stream, Support
from deepinfer.registry import Call, Plan, TensorMeta
from deepinfer.registry.prepared import PreparedLaunches
from deepinfer_cuda.kernels.base import CudaKernel
from deepinfer_cuda.tensor_map import matrix_map


@dataclass(frozen=True)
class Tile:
    """One compiled shape of sm90_gemm_bf16."""

    rows: int
    cols: int
    stages: int
    cluster: int

    @property
    def symbol(self) -> str:
        return f"sm90_gemm_bf16_{self.rows}x{self.cols}x{self.stages}_c{self.cluster}"

    @property
    def threads(self) -> int:
        return 128 * (1 + self.rows // 64)

    @property
    def shared_bytes(self) -> int:
        """As GemmBf16::kSharedBytes in gemm_bf16.cuh."""
        stage = (self.rows + self.cols) * 64 * 2
        return 1024 + self.stages * stage + self.rows // 64 * 2 * 8192 + 16 * self.stages


TILES = (Tile(128, 256, 4, 1), Tile(128, 128, 6, 1), Tile(64, 128, 8, 1))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def cycles(tile: Tile, rows: int, cols: int, depth: int, units: int) -> float:
    """Modelled cycles: waves of tiles times the slower of matrix unit (4096 FLOP/cycle) and L2 (64 B/cycle per SM)."""
    tiles = ceil_div(ceil_div(rows, tile.rows), tile.cluster) * tile.cluster * ceil_div(cols, tile.cols)
    waves = ceil_div(tiles, units // tile.cluster * tile.cluster)
    math = 2.0 * tile.rows * tile.cols * depth / 4096
    loads = (tile.rows + tile.cols / tile.cluster) * depth * 2 / 64
    return waves * (max(math, loads) + 1500.0)


def choose(rows: int, cols: int, depth: int, units: int) -> Tile:
    """The tile with the fewest modelled cycles."""
    return min(TILES, key=lambda tile: cycles(tile, rows, cols, depth, units))


def raster_group(tile: Tile, rows: int, cols: int) -> int:
    """Tile rows (in clusters) per band. Bands of 4 measured 5 to 9 % faster than 8 and 16 on an H200."""
    return max(1, min(4, ceil_div(ceil_div(rows, tile.rows), tile.cluster)))


def tma_reasons(name: str, meta: TensorMeta) -> list[str]:
    """Why TMA cannot walk this [rows, cols] tensor."""
    pitch = meta.stride[0] * meta.dtype.itemsize
    found = []
    if meta.shape[1] > 1 and meta.stride[1] != 1:
        found.append(f"{name} needs unit stride in its last dimension, got {meta.stride[1]}")
    if meta.shape[0] > 1 and pitch % 16:
        found.append(f"{name} needs a row pitch of a multiple of 16 bytes, got {pitch}")
    if not meta.aligned:
        found.append(f"{name} needs a 16-byte aligned address")
    return found


class Sm90GemmBf16(CudaKernel):
    """See kernels/sm90/gemm_bf16.cuh."""

    op = "deep_gmm.gemm"
    name = "sm90_gemm_bf16"
    source = "sm90/gemm_bf16"
    archs = ("sm_90",)
    sources = ("kernels/sm90/gemm_bf16.cuh", "kernels/sm90/gemm_bf16.cu")
    batch_invariant = False

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons: list[str] = []
        if props.arch not in self.archs:
            reasons.append(f"needs {' or '.join(self.archs)}, the device is {props.arch}")
        a, b = call["a"], call["b"]
        if a.dtype != torch.bfloat16 or b.dtype != torch.bfloat16 or call["out_dtype"] != torch.bfloat16:
            reasons.append(f"takes bf16 in and out, got {a.dtype}, {b.dtype} -> {call['out_dtype']}")
        reasons += [f"{name} is not supported" for name in ("c", "bias") if call[name] is not None]
        if 0 in (a.shape[0], b.shape[0], a.shape[1]):
            reasons.append("empty M, N or K is left to the portable tier")
        else:
            reasons += [*tma_reasons("a", a), *tma_reasons("b", b)]
            reasons += tma_reasons("out", call.out[0]) if call.out else []
            if not call.out and b.shape[0] % 8:
                reasons.append(f"needs N to be a multiple of 8 for the rows of D, got {b.shape[0]}")
        return Support(tuple(reasons))

    def plan(self, device: Device, call: Call) -> Plan:
        rows, depth = call["a"].shape
        cols = call["b"].shape[0]
        tile = choose(rows, cols, depth, device.props.compute_units)
        return Plan(state=(PreparedLaunches(), self.load(device), device, tile))

    def run(
        self,
        plan: Plan,
        stream: Stream,
        args: tuple[Any, ...],
        out: tuple[torch.Tensor | None, ...],
        workspace: torch.Tensor | None,
    ) -> None:
        launches, code, device, tile = plan.state
        a, b, d = args[0], args[3], out[0]
        if d is not None:
            launches.run(stream, (a, b, d), lambda: prepare(code, device, tile, a, b, d))


def prepare(
    code: Executable, device: Any, tile: Tile, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor
) -> Callable[[Stream], None]:
    """Tensor maps, scalars and grid of one launch."""
    rows, depth = a.shape
    cols = b.shape[0]
    maps = (matrix_map(a, tile.rows, 64), matrix_map(b, tile.cols // tile.cluster, 64), matrix_map(d, 64, 64))
    group = raster_group(tile, rows, cols)
    args = [Arg(device.encode(tile_map)) for tile_map in maps]
    args += [Arg(struct.pack("<I", value)) for value in (rows, cols, depth, group)]
    clusters = ceil_div(ceil_div(rows, tile.rows), tile.cluster) * ceil_div(cols, tile.cols)
    blocks = min(clusters, device.props.compute_units // tile.cluster) * tile.cluster
    return code.prepare(
        tile.symbol, (blocks, 1, 1), (tile.threads, 1, 1), args, smem_bytes=tile.shared_bytes,
        cluster=(tile.cluster, 1, 1),
    )


KERNELS = (Sm90GemmBf16(),)
