"""The `deepseek_v3` / `deepseek_v2` decoder, built from `deepinfer.ops` over a paged latent cache.

The residual stream is float32 whatever the dtype: layers round their inputs, never the sum that all layers share.
Invariant: the model keeps no state between steps except what it writes into the cache tensors it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from deepinfer.hal import Device
from deepinfer.models.config import ModelConfig
from deepinfer.models.mla import LatentAttention, cache_format
from deepinfer.models.mlp import DenseMlp, MoeMlp
from deepinfer.models.step import StepInput
from deepinfer.models.weights import CheckpointWeights, DummyWeights, Weights
from deepinfer.ops import deep_gmm, flash_mla, norm, rope

Progress = Callable[[int, int], None]


class DecoderLayer:
    """Attention and feed-forward with their norms."""

    def __init__(self, device: Device, config: ModelConfig, weights: Weights, layer: int, table: torch.Tensor) -> None:
        prefix = f"model.layers.{layer}."
        self.eps, self.dtype = config.rms_norm_eps, weights.compute
        self.input_norm = device.to_device(weights.exact(prefix + "input_layernorm.weight"))
        self.post_norm = device.to_device(weights.exact(prefix + "post_attention_layernorm.weight"))
        self.attention = LatentAttention(device, config, weights, prefix + "self_attn.", table)
        self.mlp: DenseMlp | MoeMlp
        if config.routing is not None and config.is_moe(layer):
            self.mlp = MoeMlp(device, config, config.routing, weights, prefix + "mlp.")
        else:
            self.mlp = DenseMlp(device, weights, prefix + "mlp.", config.mlp_bias)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, step: StepInput, cache: torch.Tensor, head_counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(x, residual) -> (this layer's last output, residual before it is added), all [T, hidden] float32."""
        y, residual = norm.fused_add_rms_norm(x, residual, self.input_norm, self.eps)
        x = self.attention(y.to(self.dtype), step, cache, head_counts)
        y, residual = norm.fused_add_rms_norm(x, residual, self.post_norm, self.eps)
        return self.mlp(y.to(self.dtype), y), residual


class Model:
    """A loaded model on one device.

    Args:
        max_positions: longest sequence the rotary table must cover.
        progress: called with (layers done, layers in all) while loading.
    """

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        weights: Weights,
        max_positions: int,
        progress: Progress | None = None,
    ) -> None:
        self.device, self.config, self.dtype = device, config, weights.compute
        embedding = weights.matrix("model.embed_tokens.weight")
        self.embedding = device.to_device(embedding)
        head = embedding if config.tie_word_embeddings else weights.matrix("lm_head.weight")
        self.head = deep_gmm.prepack(device.to_device(head))
        self.norm = device.to_device(weights.exact("model.norm.weight"))
        table = rotary_table(config, max_positions)
        table = device.to_device(table)
        self.layers: list[DecoderLayer] = []
        for layer in range(config.layers):
            self.layers.append(DecoderLayer(device, config, weights, layer, table))
            if progress is not None:
                progress(layer + 1, config.layers)

    def new_cache(self, blocks: int, page: int) -> list[torch.Tensor]:
        """Uninitialised cache tensors of all layers, each for `blocks` blocks of `page` rows."""
        shape, dtype = flash_mla.cache_shape(self.layers[0].attention.format, blocks, page, self.config.latent_dim)
        return [self.device.empty(shape, dtype) for _ in self.layers]

    def forward(self, step: StepInput, cache: Sequence[torch.Tensor]) -> torch.Tensor:
        """Hidden states [n, hidden] float32 of the rows `step.rows`, before the final norm; writes the cache."""
        residual = torch.nn.functional.embedding(step.tokens, self.embedding).float()
        x = torch.zeros_like(residual)
        head_counts = torch.full((self.config.heads,), residual.shape[0], dtype=torch.int32, device=residual.device)
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x, residual = layer(x, residual, step, layer_cache, head_counts)
        if step.rows is not None:
            x, residual = x[step.rows], residual[step.rows]
        return x + residual

    def release(self) -> None:
        """Drop all weights; `forward` and `logits` must not be called any more. Idempotent."""
        self.layers = []
        for name in ("embedding", "head", "norm"):
            self.__dict__.pop(name, None)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] float32 -> [n, vocab] float32."""
        y = norm.rms_norm(hidden, self.norm, self.config.rms_norm_eps)
        return deep_gmm.gemm(y.to(self.dtype), self.head, out_dtype=torch.float32)


def cache_bytes(config: ModelConfig, compute: torch.dtype, page: int) -> int:
    """Bytes of one cache block of `page` rows in all layers."""
    shape, dtype = flash_mla.cache_shape(cache_format(compute), 1, page, config.latent_dim)
    return math.prod(shape) * dtype.itemsize * config.layers


def rotary_table(config: ModelConfig, max_positions: int) -> torch.Tensor:
    """[max_positions, qk_rope_head_dim] float32: cosines, then sines."""
    return rope.build_table(max_positions, config.rope.dim, config.rope.theta, scaling=config.rope.scaling)


def open_weights(
    directory: Path,
    config: ModelConfig,
    dtype: torch.dtype | None,
    compute: torch.dtype | None = None,
    dummy_seed: int | None = None,
) -> Weights:
    """The checkpoint's weights, every header checked; with `dummy_seed` random ones."""
    if dummy_seed is not None:
        return DummyWeights(config, dtype, compute, dummy_seed)
    return CheckpointWeights(directory, config, dtype, compute)
