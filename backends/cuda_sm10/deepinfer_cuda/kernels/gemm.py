"""bf16 products on SM90 and SM100: which calls the kernels take, and how they are launched.

`deep_gmm.gemm`, `grouped_gemm` and `masked_grouped_gemm` are one kernel per architecture (kernels/sm90/gemm_bf16.cuh,
kernels/sm100/gemm_bf16.cuh), both with the same parameters; the classes here differ in how rows are grouped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from deepinfer.hal import Arg, Device, DeviceProps, Executable, Stream, Support
from deepinfer.hal.driver_device import tensor_span
from deepinfer.registry import Call, Plan, TensorMeta
from deepinfer.registry.prepared import PreparedLaunches
from deepinfer_cuda.kernels import pack_rows
from deepinfer_cuda.kernels.base import CudaKernel, Unit, load
from deepinfer_cuda.kernels.gemm_tiles import (
    DENSE_TILES,
    MASKED_TILES,
    SM100_TILES,
    TILES,
    Tile,
    ceil_div,
    choose,
    choose_dense,
    choose_masked,
)
from deepinfer_cuda.kernels.pack_rows import Packing
from deepinfer_cuda.tensor_map import slab_map

WIDE, MASKED, BOX_SHIFT = 1, 2, 8  # flags of di::Groups
TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}  # of C, bias and D in layout/sums.cuh
FOURS_IN_D, FOURS_IN_C = 1, 2  # flags of di::Output
NO_MAP = Arg(bytes(128))  # for a tensor map that the launch does not use


@dataclass(frozen=True)
class Product:
    """The tensors of one launch. `lists` are counts and, where given, starts."""

    a: torch.Tensor
    b: torch.Tensor
    d: torch.Tensor
    lists: tuple[torch.Tensor, ...] = ()
    c: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that are there; D is the third."""
        extra = [tensor for tensor in (self.c, self.bias) if tensor is not None]
        return [self.a, self.b, self.d, *self.lists, *extra]


def range_reasons(name: str, meta: TensorMeta) -> list[str]:
    """Why the kernels' 32-bit coordinates do not reach every element."""
    if max(meta.shape, default=0) < 1 << 31:
        return []
    return [f"{name} needs dimensions below 2^31, the range of TMA coordinates, got {list(meta.shape)}"]


def tma_reasons(name: str, meta: TensorMeta) -> list[str]:
    """Why TMA cannot walk this [..., rows, cols] tensor."""
    found = []
    if meta.shape[-1] > 1 and meta.stride[-1] != 1:
        found.append(f"{name} needs unit stride in its last dimension, got {meta.stride[-1]}")
    for axis in range(meta.ndim - 1):
        pitch = meta.stride[axis] * meta.dtype.itemsize
        if meta.shape[axis] > 1 and (pitch % 16 or not 0 < pitch < 1 << 40):
            found.append(f"{name} needs strides that are multiples of 16 bytes, got {pitch} in dimension {axis}")
    if not meta.aligned:
        found.append(f"{name} needs a 16-byte aligned address")
    return found


class Sm90Gemm(CudaKernel):
    """Dense product: one group."""

    op = "deep_gmm.gemm"
    name = "sm90_gemm_bf16"
    header = "kernels/sm90/gemm_bf16.cuh"
    more_headers: tuple[str, ...] = (pack_rows.HEADER,)
    archs: tuple[str, ...] = ("sm_90",)
    batch_invariant = False
    tiles: tuple[Tile, ...] = DENSE_TILES
    pick: ClassVar[Callable[..., Tile]] = staticmethod(choose_dense)
    tensors: tuple[int, ...] = (0, 3, 8, 9)  # positions of the tensor arguments: A, B, and what `product` adds

    def units(self) -> Sequence[Unit]:
        return (*(tile.unit for tile in self.tiles), pack_rows.UNIT)

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons: list[str] = []
        if props.arch not in self.archs:
            reasons.append(f"needs {' or '.join(self.archs)}, the device is {props.arch}")
        a, b = call["a"], call["b"]
        if a.dtype != torch.bfloat16 or b.dtype != torch.bfloat16:
            reasons.append(f"takes bf16 operands, got {a.dtype} and {b.dtype}")
        elif call["out_dtype"] not in (torch.bfloat16, torch.float32):
            reasons.append(f"writes bf16 or float32, got {call['out_dtype']}")
        reasons += [*range_reasons("a", a), *range_reasons("b", b)]
        return Support(tuple(reasons))

    def expected_rows(self, call: Call) -> tuple[int, int]:
        """(groups, rows of one) that the tile is chosen for."""
        return 1, call["a"].shape[0]

    def tile(self, call: Call, units: int) -> Tile:
        """The tile for a device with `units` SMs."""
        groups, rows = self.expected_rows(call)
        cols, depth = call["b"].shape[-2:]
        return self.pick(rows, cols, depth, units, groups, self.tiles, stored_by_tma(call))

    def plan(self, device: Device, call: Call) -> Plan:
        tile = self.tile(call, device.props.compute_units)
        packings, workspace = pack(call)
        codes = load(device, tile.unit), load(device, pack_rows.UNIT) if workspace else None
        lists, workspace = pack_lists(call, workspace)
        return Plan(workspace, (PreparedLaunches(), codes, device, tile, packings, lists))

    def run(
        self,
        plan: Plan,
        stream: Stream,
        args: tuple[Any, ...],
        out: tuple[torch.Tensor | None, ...],
        workspace: torch.Tensor | None,
    ) -> None:
        if out[0] is not None:
            self.bind(plan, args, (out[0],), workspace)(stream)

    def bind(
        self,
        plan: Plan,
        args: tuple[Any, ...],
        out: tuple[torch.Tensor, ...],
        workspace: torch.Tensor | None = None,
    ) -> Callable[[Stream], None]:
        launches, codes, device, tile, packings, lists = plan.state
        if out[0].numel() == 0 or args[3].shape[0] == 0:
            return _nothing
        if lists is not None and workspace is not None:
            args = with_dense_lists(args, self.tensors[2:], lists, workspace)
        tensors = [args[at] for at in self.tensors if args[at] is not None]
        tensors += out if workspace is None else (*out, workspace)
        launch: Callable[[Stream], None] = launches.get(
            tensors,
            lambda: prepare_packed(codes, device, tile, self.product(args, out[0]), packings, workspace),
        )
        return launch

    def product(self, args: tuple[Any, ...], d: torch.Tensor) -> Product:
        """The op's arguments by role."""
        return Product(args[0], args[3], d, c=args[8], bias=args[9])


class Sm90GroupedGemm(Sm90Gemm):
    """Groups of rows at any place; counts and starts stay on the device."""

    op = "deep_gmm.grouped_gemm"
    name = "sm90_grouped_gemm_bf16"
    tiles: tuple[Tile, ...] = TILES
    pick: ClassVar[Callable[..., Tile]] = staticmethod(choose)

    def expected_rows(self, call: Call) -> tuple[int, int]:
        groups = max(call["b"].shape[0], 1)
        return groups, ceil_div(call["a"].shape[0], groups)

    def product(self, args: tuple[Any, ...], d: torch.Tensor) -> Product:
        return Product(args[0], args[3], d, tuple(tensor for tensor in args[8:10] if tensor is not None))


class Sm90MaskedGroupedGemm(Sm90GroupedGemm):
    """A slab of rows per group; only the first counts[g] are computed and written."""

    op = "deep_gmm.masked_grouped_gemm"
    name = "sm90_masked_grouped_gemm_bf16"
    header = "kernels/sm90/masked_bf16.cuh"
    more_headers: tuple[str, ...] = ("kernels/sm90/gemm_bf16.cuh", pack_rows.HEADER)
    tiles = MASKED_TILES
    pick = staticmethod(choose_masked)
    tensors = (0, 3, 8)

    def expected_rows(self, call: Call) -> tuple[int, int]:
        return call["a"].shape[0], call["a"].shape[1]

    def product(self, args: tuple[Any, ...], d: torch.Tensor) -> Product:
        return Product(args[0], args[3], d, (args[8],))


class Sm100Gemm(Sm90Gemm):
    """The dense product on tcgen05; every class below differs from its SM90 twin in the code it loads."""

    name, header, archs = "sm100_gemm_bf16", "kernels/sm100/gemm_bf16.cuh", ("sm_100", "sm_103")
    tiles = SM100_TILES
    pick = staticmethod(choose)


class Sm100GroupedGemm(Sm90GroupedGemm):
    name, header, archs = "sm100_grouped_gemm_bf16", "kernels/sm100/gemm_bf16.cuh", ("sm_100", "sm_103")
    tiles = SM100_TILES


class Sm100MaskedGroupedGemm(Sm90MaskedGroupedGemm):
    name, header, archs = "sm100_masked_grouped_gemm_bf16", "kernels/sm100/gemm_bf16.cuh", ("sm_100", "sm_103")
    more_headers = (pack_rows.HEADER,)
    tiles = SM100_TILES


def _nothing(stream: Stream) -> None:
    """The launch of an empty product."""


def pack(call: Call) -> tuple[tuple[Packing | None, Packing | None], int]:
    """Where A and B are packed, None = used as they are, and the bytes of workspace that takes."""
    found: list[Packing | None] = []
    end = 0
    for name in ("a", "b"):
        meta = call[name]
        needed = call["a"].numel and call["b"].numel and tma_reasons(name, meta)
        packing = Packing.after(end, meta) if needed else None
        end = packing.end(meta.dtype.itemsize) if packing else end
        found.append(packing)
    return (found[0], found[1]), end


def pack_lists(call: Call, workspace: int) -> tuple[int | None, int]:
    """Where counts and starts are laid side by side as int64, behind `workspace` bytes, None = used as they are; and
    the bytes of workspace with them. The kernels read dense lists of one type."""
    lists = [call.args[name] for name in ("counts", "starts") if call.args.get(name) is not None]
    if all(meta.contiguous for meta in lists) and len({meta.dtype for meta in lists}) <= 1:
        return None, workspace
    start = ceil_div(workspace, pack_rows.ALIGNMENT) * pack_rows.ALIGNMENT
    return start, start + sum(8 * meta.numel for meta in lists)


def with_dense_lists(
    args: tuple[Any, ...], positions: Sequence[int], offset: int, workspace: torch.Tensor
) -> tuple[Any, ...]:
    """`args` with the lists at `positions` copied to `offset` of the workspace."""
    changed = list(args)
    for at in positions:
        if args[at] is not None:
            dense = workspace[offset : offset + 8 * args[at].numel()].view(torch.int64)
            changed[at] = dense.copy_(args[at])
            offset += 8 * args[at].numel()
    return tuple(changed)


def prepare_packed(
    codes: tuple[Executable, Executable | None],
    device: Any,
    tile: Tile,
    product: Product,
    packings: tuple[Packing | None, Packing | None],
    workspace: torch.Tensor | None,
) -> Callable[[Stream], None]:
    """The product behind the copies of those operands that need one."""
    code, pack_code = codes
    if workspace is None or pack_code is None:  # a workspace without pack_code holds lists only
        return prepare(code, device, tile, product)
    launches, operands = [], []
    for source, packing in zip((product.a, product.b), packings, strict=True):
        if packing is None:
            operands.append(source)
            continue
        packed = packing.view(workspace, source.dtype)
        launches.append(pack_rows.prepare(pack_code, device, source, packed))
        operands.append(packed[..., : source.shape[-1]])
    launches.append(prepare(code, device, tile, replace(product, a=operands[0], b=operands[1])))

    def enqueue(stream: Stream) -> None:
        for launch in launches:
            launch(stream)

    return enqueue


def stored_by_tma(call: Call) -> bool:
    """Whether D is what the TMA epilogue writes: bf16, nothing added, rows on 16-byte boundaries."""
    if call["out_dtype"] != torch.bfloat16 or any(call.args.get(name) is not None for name in ("c", "bias")):
        return False
    if call.out:
        return not tma_reasons("out", call.out[0])
    return bool(call["b"].shape[-2] % 8 == 0)


def prepare(
    code: Executable, device: Any, tile: Tile, product: Product, dependent: bool = False
) -> Callable[[Stream], None]:
    """Tensor maps, scalars and grid of one launch; `dependent`: it may start while the kernel before it ends."""
    a, b, d = product.a, product.b, product.d
    masked, groups = a.ndim == 3, b.shape[0] if b.ndim == 3 else 1
    rows, cols = d.shape[-2:]
    depth = a.shape[-1]
    box = tile.box(rows) if groups == 1 and not masked else tile.load_rows
    maps = [NO_MAP] * 3
    if depth:
        loads = slab_map(a, box, 64), slab_map(b, tile.cols // tile.cluster, 64)
        maps[:2] = [Arg(device.encode(tile_map)) for tile_map in loads]
    if not tile.sums:
        maps[2] = Arg(device.encode(slab_map(d, tile.store_rows, 64)))
    lists = product.lists
    flags = (WIDE if lists and lists[0].dtype == torch.int64 else 0) | (MASKED if masked else 0)
    flags |= box << BOX_SHIFT if box < tile.load_rows else 0
    addresses = [tensor.data_ptr() for tensor in lists] + [0] * (2 - len(lists))
    problem = struct.pack("<QQ6I", *addresses, groups, rows, cols, depth, tile.band, flags)
    args = [*maps, Arg(pack_output(product)), Arg(problem)]
    args += [Arg(span=tensor_span(tensor, tensor is d)) for tensor in product.tensors]
    tiles = groups * ceil_div(rows, tile.rows * tile.cluster) * ceil_div(cols, tile.cols)
    clusters = min(tiles, tile.slots(device.props.compute_units))
    return code.prepare(
        tile.symbol, (clusters * tile.ctas, 1, 1), (tile.threads, 1, 1), args, smem_bytes=tile.shared_bytes,
        cluster=(tile.ctas, 1, 1), dependent=dependent or tile.ahead,
    )


def pack_output(product: Product) -> bytes:
    """di::Output of layout/sums.cuh."""
    c, bias, d = product.c, product.bias, product.d
    slab = d.stride(0) if d.ndim == 3 else 0
    steps = [d.stride(-2), slab, d.stride(-1)]
    fields: list[int] = [d.data_ptr(), *(step * d.element_size() for step in steps)]
    fields += [0, 0, 0] if c is None else [c.data_ptr(), *(step * c.element_size() for step in c.stride())]
    fields += [0, 0] if bias is None else [bias.data_ptr(), bias.stride(0) * bias.element_size()]
    types = (0 if tensor is None else TYPES[tensor.dtype] for tensor in (d, c, bias))
    flags = (FOURS_IN_D if in_fours(d) else 0) | (FOURS_IN_C if c is not None and in_fours(c) else 0)
    return struct.pack("<QqqqQqqQq4I", *fields, *types, flags)


def in_fours(tensor: torch.Tensor) -> bool:
    """Whether columns 4i to 4i + 3 of every row lie side by side on a boundary of their size."""
    size = 4 * tensor.element_size()
    steps = [tensor.stride(axis) for axis in range(tensor.ndim - 1) if tensor.shape[axis] > 1]
    aligned = tensor.data_ptr() % size == 0 and all(step % 4 == 0 for step in steps)
    return aligned and (tensor.stride(-1) == 1 or tensor.shape[-1] == 1)


KERNELS = (
    Sm90Gemm(), Sm90GroupedGemm(), Sm90MaskedGroupedGemm(), Sm100Gemm(), Sm100GroupedGemm(), Sm100MaskedGroupedGemm(),
)
