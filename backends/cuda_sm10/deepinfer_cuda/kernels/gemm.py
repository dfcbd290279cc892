"""bf16 products on SM90 and SM100: which calls the kernels take, which tile they pick, how they are launched.

`deep_gmm.gemm`, `grouped_gemm` and `masked_grouped_gemm` are one kernel per architecture (kernels/sm90/gemm_bf16.cuh,
kernels/sm100/gemm_bf16.cuh), both with the same parameters; the classes here differ in how rows are grouped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from deepinfer.hal import Arg, Device, DeviceProps, Executable, Stream, Support
from deepinfer.hal.driver_device import tensor_span
from deepinfer.registry import Call, Plan, TensorMeta
from deepinfer.registry.prepared import PreparedLaunches
from deepinfer_cuda.kernels.base import CudaKernel
from deepinfer_cuda.tensor_map import slab_map

WIDE, MASKED = 1, 2  # flags of di::Groups


@dataclass(frozen=True)
class Tile:
    """One compiled shape of sm90_gemm_bf16: rows of one CTA, columns, stages, CTAs that share B."""

    rows: int
    cols: int
    stages: int
    cluster: int

    kernel: ClassVar[str] = "sm90_gemm_bf16"
    load_rows: ClassVar[int] = 64  # rows of A per copy; the matrix unit multiplies as many at once
    store_rows: ClassVar[int] = 64  # rows of D per copy
    flops: ClassVar[int] = 4096  # dense bf16 FLOP per cycle and SM

    @property
    def band(self) -> int:
        """Cluster tiles per raster band; the best of 2, 4, 8 on an H200 at large shapes."""
        return 8 if self.cluster > 1 else 2

    @property
    def efficiency(self) -> float:
        """Rate relative to the largest tile where the matrix unit is the bound; measured on an H200 at 8192^3."""
        return {(128, 256): 1.0, (128, 128): 0.9, (64, 256): 0.91, (64, 128): 0.8}[self.rows, self.cols]

    @property
    def symbol(self) -> str:
        return f"{self.kernel}_{self.rows}x{self.cols}x{self.stages}_c{self.cluster}"

    @property
    def threads(self) -> int:
        return 128 * (1 + self.rows // 64)

    @property
    def shared_bytes(self) -> int:
        """As GemmBf16::kSharedBytes in gemm_bf16.cuh."""
        stage = (self.rows + self.cols) * 64 * 2
        return 1024 + self.stages * stage + self.rows // 64 * 2 * 8192 + 16 * self.stages


@dataclass(frozen=True)
class Sm100Tile(Tile):
    """One compiled shape of sm100_gemm_bf16. `cluster` is 2 for a pair of CTAs, each of which loads half of B."""

    kernel: ClassVar[str] = "sm100_gemm_bf16"
    load_rows: ClassVar[int] = 128
    store_rows: ClassVar[int] = 32
    flops: ClassVar[int] = 8192

    @property
    def efficiency(self) -> float:
        """Not measured: no such device was at hand."""
        return 1.0

    @property
    def threads(self) -> int:
        return 192

    @property
    def shared_bytes(self) -> int:
        """As GemmBf16::kSharedBytes in sm100/gemm_bf16.cuh."""
        stage = (self.rows + self.cols // self.cluster) * 64 * 2
        return 1024 + self.stages * stage + 4 * 2 * 4096 + 8 * (2 * self.stages + 5)


TILES = (Tile(128, 256, 4, 2), Tile(128, 256, 4, 1), Tile(128, 128, 6, 1), Tile(64, 256, 5, 1), Tile(64, 128, 8, 1))
SM100_TILES = (
    Sm100Tile(128, 256, 6, 2), Sm100Tile(128, 256, 4, 1), Sm100Tile(128, 128, 6, 1), Sm100Tile(128, 64, 8, 1),
    Sm100Tile(128, 128, 8, 2),
)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def cycles(tile: Tile, rows: int, cols: int, depth: int, units: int, groups: int = 1) -> float:
    """Modelled cycles for `groups` groups of `rows` rows: waves of tiles times the slower of matrix unit
    (`tile.load_rows` rows at a time) and tile loads (64 bytes per cycle and SM)."""
    tiles = groups * ceil_div(rows, tile.rows * tile.cluster) * tile.cluster * ceil_div(cols, tile.cols)
    used = min(tile.rows, ceil_div(rows, tile.load_rows) * tile.load_rows)
    math = 2.0 * used * tile.cols * depth / (tile.flops * tile.efficiency)
    loads = (used + tile.cols / tile.cluster) * depth * 2 / 64
    return ceil_div(tiles, units) * (max(math, loads) + 1500.0)


def choose(
    rows: int, cols: int, depth: int, units: int, groups: int = 1, tiles: tuple[Tile, ...] = TILES
) -> Tile:
    """The tile with the fewest modelled cycles; among equals the lowest (it has more stages), then the first listed."""
    return min(tiles, key=lambda tile: (cycles(tile, max(rows, 1), cols, depth, units, groups), tile.rows))


def tma_reasons(name: str, meta: TensorMeta) -> list[str]:
    """Why TMA cannot walk this [..., rows, cols] tensor."""
    found = []
    if meta.shape[-1] > 1 and meta.stride[-1] != 1:
        found.append(f"{name} needs unit stride in its last dimension, got {meta.stride[-1]}")
    for axis in range(meta.ndim - 1):
        pitch = meta.stride[axis] * meta.dtype.itemsize
        if meta.shape[axis] > 1 and (pitch % 16 or not 0 < pitch < 1 << 40):
            found.append(f"{name} needs strides that are multiples of 16 bytes, got {pitch} in dimension {axis}")
    if max(meta.shape, default=0) >= 1 << 31:
        found.append(f"{name} needs dimensions below 2^31, the range of TMA coordinates, got {list(meta.shape)}")
    if not meta.aligned:
        found.append(f"{name} needs a 16-byte aligned address")
    return found


class Sm90Gemm(CudaKernel):
    """Dense product: one group."""

    op = "deep_gmm.gemm"
    name = "sm90_gemm_bf16"
    source = "sm90/gemm_bf16"
    archs: tuple[str, ...] = ("sm_90",)
    batch_invariant = False
    tiles: tuple[Tile, ...] = TILES

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons: list[str] = []
        if props.arch not in self.archs:
            reasons.append(f"needs {' or '.join(self.archs)}, the device is {props.arch}")
        a, b = call["a"], call["b"]
        if a.dtype != torch.bfloat16 or b.dtype != torch.bfloat16 or call["out_dtype"] != torch.bfloat16:
            reasons.append(f"takes bf16 in and out, got {a.dtype}, {b.dtype} -> {call['out_dtype']}")
        reasons += self.refuse(call)
        if a.numel and b.numel:
            reasons += [*tma_reasons("a", a), *tma_reasons("b", b)]
        reasons += tma_reasons("out", call.out[0]) if call.out and call.out[0].numel else []
        if not call.out and b.shape[-2] % 8:
            reasons.append(f"needs N to be a multiple of 8 for the rows of D, got {b.shape[-2]}")
        return Support(tuple(reasons))

    def refuse(self, call: Call) -> list[str]:
        return [f"{name} is not supported" for name in ("c", "bias") if call[name] is not None]

    def expected_rows(self, call: Call) -> tuple[int, int]:
        """(groups, rows of one) that the tile is chosen for."""
        return 1, call["a"].shape[0]

    def plan(self, device: Device, call: Call) -> Plan:
        groups, rows = self.expected_rows(call)
        cols, depth = call["b"].shape[-2:]
        tile = choose(rows, cols, depth, device.props.compute_units, groups, self.tiles)
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
        if d is None or d.numel() == 0:
            return
        lists = self.lists(args)
        launches.run(
            stream, (a, b, d, *lists), lambda: prepare(code, device, tile, (a, b, d), lists, masked=a.ndim == 3)
        )

    def lists(self, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """Counts and, where given, starts."""
        return ()


class Sm90GroupedGemm(Sm90Gemm):
    """Groups of rows at any place; counts and starts stay on the device."""

    op = "deep_gmm.grouped_gemm"
    name = "sm90_grouped_gemm_bf16"

    def refuse(self, call: Call) -> list[str]:
        lists = [call[name] for name in ("counts", "starts") if name in call.args and call[name] is not None]
        reasons = [f"counts and starts must be contiguous, got strides {m.stride}" for m in lists if not m.contiguous]
        if len({meta.dtype for meta in lists}) > 1:
            reasons.append("counts and starts must have the same dtype")
        return reasons

    def expected_rows(self, call: Call) -> tuple[int, int]:
        groups = max(call["b"].shape[0], 1)
        return groups, ceil_div(call["a"].shape[0], groups)

    def lists(self, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor for tensor in args[8:10] if tensor is not None)


class Sm90MaskedGroupedGemm(Sm90GroupedGemm):
    """A slab of rows per group; only the first counts[g] are computed and written."""

    op = "deep_gmm.masked_grouped_gemm"
    name = "sm90_masked_grouped_gemm_bf16"

    def expected_rows(self, call: Call) -> tuple[int, int]:
        return call["a"].shape[0], call["a"].shape[1]

    def lists(self, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        return (args[8],)


class Sm100Gemm(Sm90Gemm):
    """The dense product on tcgen05; every class below differs from its SM90 twin in the code it loads."""

    name, source, archs = "sm100_gemm_bf16", "sm100/gemm_bf16", ("sm_100", "sm_103")
    tiles = SM100_TILES


class Sm100GroupedGemm(Sm90GroupedGemm):
    name, source, archs = "sm100_grouped_gemm_bf16", "sm100/gemm_bf16", ("sm_100", "sm_103")
    tiles = SM100_TILES


class Sm100MaskedGroupedGemm(Sm90MaskedGroupedGemm):
    name, source, archs = "sm100_masked_grouped_gemm_bf16", "sm100/gemm_bf16", ("sm_100", "sm_103")
    tiles = SM100_TILES


def prepare(
    code: Executable,
    device: Any,
    tile: Tile,
    matrices: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    lists: tuple[torch.Tensor, ...],
    masked: bool,
) -> Callable[[Stream], None]:
    """Tensor maps, scalars and grid of one launch."""
    a, b, d = matrices
    groups = b.shape[0] if b.ndim == 3 else 1
    rows, cols = d.shape[-2:]
    depth = a.shape[-1]
    map_d = slab_map(d, tile.store_rows, 64)
    maps = (map_d,) * 3
    if depth:
        maps = (slab_map(a, tile.load_rows, 64), slab_map(b, tile.cols // tile.cluster, 64), map_d)
    flags = (WIDE if lists and lists[0].dtype == torch.int64 else 0) | (MASKED if masked else 0)
    addresses = [tensor.data_ptr() for tensor in lists] + [0] * (2 - len(lists))
    output = struct.pack("<Qqq", d.data_ptr(), d.stride(-2) * 2, d.stride(0) * 2 if masked else 0)
    problem = struct.pack("<QQ6I", *addresses, groups, rows, cols, depth, tile.band, flags)
    args = [Arg(device.encode(tile_map)) for tile_map in maps] + [Arg(output), Arg(problem)]
    args += [Arg(span=tensor_span(tensor, tensor is d)) for tensor in (a, b, d, *lists)]
    tiles = groups * ceil_div(rows, tile.rows * tile.cluster) * ceil_div(cols, tile.cols)
    clusters = max(min(tiles, device.props.compute_units // tile.cluster), 1)
    return code.prepare(
        tile.symbol, (clusters * tile.cluster, 1, 1), (tile.threads, 1, 1), args, smem_bytes=tile.shared_bytes,
        cluster=(tile.cluster, 1, 1),
    )


KERNELS = (
    Sm90Gemm(), Sm90GroupedGemm(), Sm90MaskedGroupedGemm(), Sm100Gemm(), Sm100GroupedGemm(), Sm100MaskedGroupedGemm(),
)
