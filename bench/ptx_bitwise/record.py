"""Whole kernels as cases: what ops launch on the simulated device, with the memory each launch found.

The simulator's driver is wrapped; every launch of an op becomes a case with its PTX (debug sections cut), parameters,
tensor maps and a snapshot of the memory that it may touch. The result is one file, so that both sides, and later runs,
use the same texts whatever compiler is installed.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from deepinfer_cuda.simdevice import SimDriver
from deepinfer_cuda.tensor_map import TileMap, map_codes

from deepinfer.hal import Arg, Image
from ptx_bitwise.case import Buffer, Case, Map, Pointer, Struct

LIMIT = 160_000  # bytes of memory of one recorded launch


def without_debug(ptx: str) -> str:
    """PTX without line information: it names files of the machine it was made on."""
    ptx = re.sub(r"\n\s*\.section\s+\.debug_\w+\s*\{.*?\n\s*\}", "", ptx, flags=re.S)
    ptx = re.sub(r"\n\s*\.(file|loc)\b[^\n]*", "", ptx)
    ptx = ptx.replace(", debug", "")
    return re.sub(r"\n\s*//[^\n]*", "", ptx)


class Recorder(SimDriver):
    """A simulator driver that keeps what it is asked to launch."""

    def __init__(self) -> None:
        super().__init__()
        self.cases: list[Case] = []
        self.label = ""
        self._texts: dict[int, str] = {}
        self._names: dict[int, tuple[int, str]] = {}
        self._tiles: dict[bytes, TileMap] = {}

    def module_load(self, ctx: int, image: Image) -> int:
        module = super().module_load(ctx, image)
        self._texts[module] = image.data.decode()
        return module

    def function(self, module: int, name: str) -> int:
        fn = super().function(module, name)
        self._names[fn] = module, name
        return fn

    def encode(self, tile: TileMap) -> bytes:
        raw = super().encode(tile)
        self._tiles[raw] = tile
        return raw

    def launch_clusters(
        self,
        fn: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        cluster: tuple[int, int, int],
        smem_bytes: int,
        args: Sequence[Arg],
        stream: int,
    ) -> None:
        module, name = self._names[fn]
        spans = merged(args)
        if spans and sum(end - start for start, end, _ in spans) <= LIMIT:
            text = without_debug(self._texts[module])
            made = [Buffer(snapshot(start, end), writable, hidden=True) for start, end, writable in spans]
            parameters = [self._parameter(arg, spans) for arg in args if arg.value]
            self.cases.append(
                Case(
                    f"kernel/{self.label} {name}",
                    name,
                    text,
                    (*made, *parameters),
                    grid,
                    block,
                    cluster,
                    smem_bytes,
                    name,
                    family="kernel",
                )
            )
        super().launch_clusters(fn, grid, block, cluster, smem_bytes, args, stream)

    def _parameter(self, arg: Arg, spans: list[tuple[int, int, bool]]) -> Pointer | Struct | Map | bytes:
        if arg.value in self._tiles:
            tile = self._tiles[arg.value]
            dtype, swizzle = map_codes(tile)
            buffer, offset = locate(tile.address, spans)
            return Map(buffer, dtype, tile.sizes, tile.strides, tile.box, swizzle, offset=offset)
        if arg.span is not None:
            return Pointer(*locate(int.from_bytes(arg.value, "little"), spans))
        words = [(at, int.from_bytes(arg.value[at : at + 8], "little")) for at in range(0, len(arg.value) - 7, 8)]
        places = [(at, *locate(w, spans)) for at, w in words if any(start <= w < end for start, end, _ in spans)]
        return Struct(arg.value, tuple(places)) if places else arg.value


def merged(args: Iterable[Arg]) -> list[tuple[int, int, bool]]:
    """Disjoint (start, end, writable) of all spans, starts rounded down to 16 bytes as kernels expect."""
    found: list[tuple[int, int, bool]] = []
    for span in sorted((a.span for a in args if a.span and a.span.nbytes), key=lambda s: s.base):
        start, end = span.base, span.base + span.nbytes
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1]), span.writable or found[-1][2]
        else:
            found.append((start - start % 16, end, span.writable))
    return found


def locate(address: int, spans: list[tuple[int, int, bool]]) -> tuple[int, int]:
    for index, (start, end, _) in enumerate(spans):
        if start <= address <= end:
            return index, address - start
    return 0, 0  # an empty tensor: never dereferenced


def snapshot(start: int, end: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(ctypes.string_at(start, end - start), np.uint8)


def save(path: Path, cases: Sequence[Case]) -> None:
    """One compressed .npz; texts are stored once."""
    texts = sorted({c.ptx for c in cases})
    arrays: dict[str, Any] = {"texts": np.frombuffer("\0".join(texts).encode(), np.uint8)}
    rows = []
    for index, case in enumerate(cases):
        args: list[Any] = []
        for place, arg in enumerate(case.args):
            if isinstance(arg, Buffer):
                arrays[f"{index}_{place}"] = arg.data
                args.append(["buffer", arg.out, arg.hidden])
            elif isinstance(arg, Pointer):
                args.append(["pointer", arg.buffer, arg.offset])
            elif isinstance(arg, Map):
                args.append(["map", arg.buffer, arg.dtype, arg.dims, arg.strides, arg.box, arg.swizzle, arg.offset])
            elif isinstance(arg, Struct):
                args.append(["struct", arg.data.hex(), arg.places])
            else:
                args.append(["value", arg.hex()])
        rows.append(
            [
                case.name,
                case.instruction,
                texts.index(case.ptx),
                args,
                case.grid,
                case.block,
                case.cluster,
                case.smem,
                case.entry,
                case.rule,
            ]
        )
    arrays["rows"] = np.frombuffer(json.dumps(rows).encode(), np.uint8)
    np.savez_compressed(path, **arrays)


def load(path: Path) -> list[Case]:
    """The cases that `save` wrote."""
    with np.load(path) as store:
        texts = store["texts"].tobytes().decode().split("\0")
        rows = json.loads(store["rows"].tobytes())
        found = []
        for index, (name, instruction, text, args, grid, block, cluster, smem, entry, rule) in enumerate(rows):
            made: list[Buffer | Pointer | Struct | Map | bytes] = []
            for place, (kind, *rest) in enumerate(args):
                if kind == "buffer":
                    made.append(Buffer(store[f"{index}_{place}"], rest[0], hidden=rest[1]))
                elif kind == "pointer":
                    made.append(Pointer(*rest))
                elif kind == "map":
                    buffer, dtype, dims, strides, box, swizzle, offset = rest
                    made.append(Map(buffer, dtype, tuple(dims), tuple(strides), tuple(box), swizzle, offset=offset))
                elif kind == "struct":
                    made.append(Struct(bytes.fromhex(rest[0]), tuple(map(tuple, rest[1]))))
                else:
                    made.append(bytes.fromhex(rest[0]))
            found.append(
                Case(
                    name,
                    instruction,
                    texts[text],
                    tuple(made),
                    tuple(grid),
                    tuple(block),
                    tuple(cluster),
                    smem,
                    entry,
                    rule,
                    "kernel",
                )
            )
    return found
