"""A checkpoint directory of safetensors files: which file holds which tensor, known before any data is read.

Invariants: file names from an index never leave the directory; every tensor has exactly one home; nothing but
safetensors is ever opened (no pickle).
"""

from __future__ import annotations

from pathlib import Path

from deepinfer.errors import CheckpointError
from deepinfer.models.fields import is_file, read_json
from deepinfer.models.safetensors_file import Entry, read_header

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def open_checkpoint(directory: Path) -> dict[str, Entry]:
    """All tensors of the checkpoint in `directory` by name, from headers alone.

    Raises:
        CheckpointError: no safetensors file, a missing or damaged shard, or an index that does not match its shards.
    """
    if is_file(directory / INDEX):
        return _open_index(directory / INDEX)
    if is_file(directory / SINGLE):
        return read_header(directory / SINGLE)
    others = sorted(p.name for p in directory.glob("*") if p.suffix in {".bin", ".pt", ".pth", ".ckpt", ".safetensors"})
    hint = f"; found {', '.join(others[:5])}, which cannot be used" if others else ""
    raise CheckpointError(f"{directory}: holds neither {SINGLE} nor {INDEX}{hint}")


def _open_index(index: Path) -> dict[str, Entry]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: weight_map: must be an object from tensor names to file names")
    files = sorted(set(weight_map.values()))
    for name in files:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: weight_map: got file {name!r}, must be a safetensors file beside the index"
            )
    entries: dict[str, Entry] = {}
    for name in files:
        for key, entry in read_header(index.parent / name).items():
            if weight_map.get(key) != name:
                home = weight_map.get(key, "no file")
                raise CheckpointError(f"{index.parent / name}: tensor {key!r}: lies here, the index puts it in {home}")
            entries[key] = entry
    for key, name in weight_map.items():
        if key not in entries:
            raise CheckpointError(f"{index.parent / name}: tensor {key!r}: the index puts it here, the file lacks it")
    return entries
