"""Where a model's weights come from: a checked checkpoint, or well-scaled random numbers.

Both give tensors by checkpoint name on the host. Values are rounded to the model's dtype, whatever dtype they are then
computed in; float8 weights are multiplied with their block scales in float32 and rounded once. Tensors are produced
one at a time, so loading needs little more memory than the model itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from deepinfer.errors import CheckpointError
from deepinfer.models.checkpoint import open_checkpoint
from deepinfer.models.config import ModelConfig
from deepinfer.models.manifest import EMBEDDING, HEAD, SCALE, check_entries, manifest
from deepinfer.models.safetensors_file import Entry, read_tensor


class Weights(Protocol):
    """A source of tensors; `dtype` is what values are rounded to, `compute` the dtype they are held in for products."""

    dtype: torch.dtype
    compute: torch.dtype

    def matrix(self, name: str) -> torch.Tensor:
        """A linear or embedding weight, rounded to `dtype`, in `compute`."""

    def exact(self, name: str) -> torch.Tensor:
        """A weight in float32: norms, biases, the router, and what is multiplied further before use."""


class CheckpointWeights:
    """Tensors of a checkpoint directory whose headers passed every check.

    Args:
        directory: a Hugging Face model directory.
        dtype: what weights are rounded to; None takes the dtype the checkpoint is stored in.
        compute: dtype of activations and of weights in products; None = `dtype`.
    """

    def __init__(
        self, directory: Path, config: ModelConfig, dtype: torch.dtype | None, compute: torch.dtype | None = None
    ) -> None:
        self._entries: Mapping[str, Entry] = open_checkpoint(directory)
        stored = check_entries(directory, self._entries, config)
        if config.tie_word_embeddings and HEAD in self._entries:
            self._check_tied(self._entries[HEAD])
        self.dtype = dtype or stored
        self.compute = compute or self.dtype

    def matrix(self, name: str) -> torch.Tensor:
        return self._read(name).to(self.dtype).to(self.compute)

    def exact(self, name: str) -> torch.Tensor:
        return self._read(name).to(torch.float32)

    def _check_tied(self, head: Entry) -> None:
        """A stored head is left out where config.json ties it to the embedding: it must be the same matrix."""
        if not torch.equal(read_tensor(head), read_tensor(self._entries[EMBEDDING])):
            raise CheckpointError(
                f"{head.file}: tensor {HEAD!r}: differs from {EMBEDDING!r}, to which config.json ties it "
                "(tie_word_embeddings)"
            )

    def _read(self, name: str) -> torch.Tensor:
        data = read_tensor(self._entries[name])
        if data.dtype != torch.float8_e4m3fn:
            return data
        return expand_blocks(data, read_tensor(self._entries[name + SCALE]))


class DummyWeights:
    """Random weights that keep activations near unit size; a tensor depends on its name and `seed` alone."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype | None, compute: torch.dtype | None = None, seed: int = 0
    ) -> None:
        self.dtype = dtype or config.dtype or torch.float32
        self.compute = compute or self.dtype
        self._shapes = {name: wanted.shape for name, wanted in manifest(config).items()}
        self._seed = seed

    def matrix(self, name: str) -> torch.Tensor:
        return self.exact(name).to(self.dtype).to(self.compute)

    def exact(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=torch.float32)
        if len(shape) == 1:
            return torch.zeros(shape, dtype=torch.float32)
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        scale = 1.0 if name == EMBEDDING else 1.0 / math.sqrt(shape[1])
        return torch.randn(shape, generator=generator, dtype=torch.float32) * scale


def expand_blocks(data: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] = (128, 128)) -> torch.Tensor:
    """float32 [N, K] from float8 `data` [N, K] and one float32 scale per block of `block` (rows, columns)."""
    rows, cols = data.shape
    wide = scale.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :cols]
    return data.float() * wide
