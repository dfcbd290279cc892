"""One safetensors file: its header, checked completely before any tensor is read, and plain reads of single tensors.

The format: 8 bytes little-endian header length, a JSON object name -> {dtype, shape, data_offsets}, then the data.
Invariant: after `read_header` every entry's byte range lies inside the file, matches its shape and dtype, and overlaps
no other; so a later read can only fail for reasons outside the file's content.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from deepinfer.errors import CheckpointError
from deepinfer.models.fields import is_file

TOO_MANY = 1 << 63  # bytes; larger numbers are damage, and may be too long to print
MAX_HEADER = 100_000_000  # bytes; the limit the format's own library sets
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: bytes [start, end) of `file`."""

    file: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """All tensors of `path` by name.

    Raises:
        CheckpointError: the file is missing, truncated or its header is corrupt; names the file and the tensor.
    """
    if not is_file(path):
        raise CheckpointError(f"{path}: the file does not exist")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header, begin = _header_bytes(path, file, size)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    entries: dict[str, Entry] = {}
    for name, fields in _parse(path, header).items():
        if name != "__metadata__":
            entries[name] = _entry(path, name, fields, begin)
    _check_ranges(path, entries, begin, size)
    return entries


def read_tensor(entry: Entry) -> torch.Tensor:
    """The tensor of `entry`, on the host; one plain read into fresh memory."""
    data = torch.empty(entry.end - entry.start, dtype=torch.uint8)
    try:
        with entry.file.open("rb") as file:
            file.seek(entry.start)
            got = file.readinto(data.numpy().data)
    except OSError as error:
        raise CheckpointError(
            f"{entry.file}: tensor {entry.name!r}: cannot be read: {error.strerror or error}"
        ) from error
    if got != data.numel():
        raise CheckpointError(
            f"{entry.file}: tensor {entry.name!r}: read {got} of {data.numel()} bytes; the file shrank"
        )
    return data.view(entry.dtype).reshape(entry.shape)


def _header_bytes(path: Path, file: BinaryIO, size: int) -> tuple[bytes, int]:
    prefix = file.read(8)
    if len(prefix) < 8:
        raise CheckpointError(f"{path}: is truncated: {size} bytes, a safetensors file has at least 8")
    (length,) = struct.unpack("<Q", prefix)
    if length > MAX_HEADER:
        raise CheckpointError(
            f"{path}: corrupt header: its length field says {length} bytes, at most {MAX_HEADER} are legal"
        )
    header = file.read(length)
    if len(header) < length:
        raise CheckpointError(f"{path}: is truncated: the header needs {length} bytes, {len(header)} are there")
    return header, 8 + length


def _parse(path: Path, header: bytes) -> dict[str, Any]:
    try:
        data = json.loads(header.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: corrupt header: not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: corrupt header: holds a JSON {type(data).__name__}, must be an object")
    return data


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {twice!r}")
    return found


def _entry(path: Path, name: str, fields: Any, begin: int) -> Entry:
    where = f"{path}: tensor {name!r}"
    if not isinstance(fields, dict):
        raise CheckpointError(f"{where}: corrupt header: its description must be an object")
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{where}: dtype: got {dtype!r}, must be one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or not _naturals(shape):
        raise CheckpointError(f"{where}: shape: got {shape!r}, must be a list of integers >= 0")
    if not isinstance(offsets, list) or not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets: got {offsets!r}, must be [begin, end] with begin <= end")
    wanted = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != wanted:
        span, needs = (value if value < TOO_MANY else "far too many" for value in (offsets[1] - offsets[0], wanted))
        raise CheckpointError(f"{where}: data_offsets: span {span} bytes, {dtype} {str(shape)[:200]} needs {needs}")
    return Entry(path, name, DTYPES[dtype], tuple(shape), begin + offsets[0], begin + offsets[1])


def _naturals(value: list[Any]) -> bool:
    return all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value)


def _check_ranges(path: Path, entries: dict[str, Entry], begin: int, size: int) -> None:
    position = begin
    for entry in sorted(entries.values(), key=lambda e: (e.start, e.end)):
        if entry.start != position:
            kind = "overlaps the tensor before it" if entry.start < position else "leaves a hole before it"
            raise CheckpointError(f"{path}: tensor {entry.name!r}: data_offsets: {kind}")
        if entry.end > size:
            raise CheckpointError(
                f"{path}: tensor {entry.name!r}: the file is truncated: data ends at byte {entry.end}, "
                f"the file has {size}"
            )
        position = entry.end
    if position != size:
        raise CheckpointError(f"{path}: {size - position} bytes after the last tensor belong to none")
