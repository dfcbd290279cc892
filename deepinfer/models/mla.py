"""Multi-head latent attention over the paged latent cache, in the absorbed form.

A cache row is the normalised latent (kv_lora_rank channels) and the rotated shared key part. The key up-projection is
applied to the query and the value up-projection to the attention output, so keys and values are never expanded:

    x -> [q_a | kv_a] -> q_a norm -> q_b -> q_nope W_UK -> [q_latent | rope(q_pe)] -> attention -> W_UV -> o_proj

Between products values are float32; in bfloat16 they are rounded where a product or the cache takes them, once each.
Every product accumulates in float32. The result is float32, because it is added to a float32 residual.
"""

from __future__ import annotations

import torch

from deepinfer.hal import Device
from deepinfer.models.config import ModelConfig
from deepinfer.models.linear import Linear
from deepinfer.models.step import StepInput
from deepinfer.models.weights import Weights
from deepinfer.ops import deep_gmm, flash_mla, norm, rope

LATENT_NORM_EPS = 1e-6  # fixed in this model family, whatever rms_norm_eps says


def cache_format(compute: torch.dtype) -> flash_mla.KVFormat:
    """How cache rows are stored under activations of this dtype."""
    return flash_mla.KVFormat.F32 if compute == torch.float32 else flash_mla.KVFormat.BF16


class LatentAttention:
    """The attention of one layer. `table` is the rotary table [positions, qk_rope_head_dim]."""

    def __init__(self, device: Device, config: ModelConfig, weights: Weights, prefix: str, table: torch.Tensor) -> None:
        self.config, self.table, c = config, table, config
        self.dtype = weights.compute
        self.format = cache_format(weights.compute)
        first = "q_proj" if c.q_lora_rank is None else "q_a_proj"
        biased = (c.attention_bias and c.q_lora_rank is not None, c.attention_bias)
        self.down = Linear(device, weights, [prefix + first, prefix + "kv_a_proj_with_mqa"], biased)
        if c.q_lora_rank is not None:
            self.q_norm = device.to_device(weights.exact(prefix + "q_a_layernorm.weight"))
            self.q_up = Linear(device, weights, [prefix + "q_b_proj"])
        self.kv_norm = device.to_device(weights.exact(prefix + "kv_a_layernorm.weight"))
        self.out = Linear(device, weights, [prefix + "o_proj"], (c.attention_bias,))
        up = weights.matrix(prefix + "kv_b_proj.weight")
        up = up.view(c.heads, c.qk_nope_head_dim + c.v_head_dim, c.kv_lora_rank)
        self.absorb_k = _heads(device, up[:, : c.qk_nope_head_dim].transpose(1, 2))
        self.absorb_v = _heads(device, up[:, c.qk_nope_head_dim :])

    def __call__(
        self, x: torch.Tensor, step: StepInput, cache: torch.Tensor, head_counts: torch.Tensor
    ) -> torch.Tensor:
        """x [T, hidden] -> [T, hidden] float32; writes this step's rows into `cache` [blocks, page, latent] first.

        `head_counts` is [heads] filled with T.
        """
        c = self.config
        q, kv = self.down(x).split_with_sizes(self.down.splits, -1)
        if c.q_lora_rank is not None:
            q = self.q_up(norm.rms_norm(q, self.q_norm, LATENT_NORM_EPS))
        q = q.view(-1, c.heads, c.qk_head_dim)
        rotated = self._rotate(q, kv, step.positions)
        latent = norm.rms_norm(kv[:, : c.kv_lora_rank], self.kv_norm, LATENT_NORM_EPS)
        rows = torch.cat([latent, rotated[:, c.heads]], -1).to(self.dtype)
        flash_mla.kv_cache_write(cache, rows, step.slots, format=self.format)
        query = self._query(q, rotated[:, : c.heads], head_counts)
        found = self._attend(query, step, cache).transpose(0, 1)
        values = deep_gmm.masked_grouped_gemm(found, self.absorb_v, head_counts, out_dtype=torch.float32)
        return self.out(values.transpose(0, 1).reshape(-1, c.heads * c.v_head_dim))

    def _rotate(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The rotary parts of all query heads and of the key, rotated together: [T, heads + 1, qk_rope_head_dim]."""
        c = self.config
        parts = torch.cat([q[..., c.qk_nope_head_dim :], kv[:, None, c.kv_lora_rank :]], 1)
        return rope.apply(parts, positions, self.table, interleaved=c.rope.interleaved)

    def _query(self, q: torch.Tensor, rotated: torch.Tensor, head_counts: torch.Tensor) -> torch.Tensor:
        nope = q[..., : self.config.qk_nope_head_dim].transpose(0, 1).to(self.dtype)
        latent = deep_gmm.masked_grouped_gemm(nope, self.absorb_k, head_counts, out_dtype=torch.float32)
        return torch.cat([latent.transpose(0, 1), rotated], -1).to(self.dtype)

    def _attend(self, query: torch.Tensor, step: StepInput, cache: torch.Tensor) -> torch.Tensor:
        n, c = step.decodes, self.config
        parts = []
        if n:
            out, _ = flash_mla.decode(
                query[:n].unsqueeze(1),
                cache,
                step.block_table[:n],
                step.seq_lens[:n],
                format=self.format,
                d_v=c.kv_lora_rank,
                softmax_scale=c.softmax_scale,
            )
            parts.append(out.squeeze(1))
        if n < query.shape[0]:
            out, _ = flash_mla.prefill(
                query[n:],
                cache,
                step.cu_q,
                block_table=step.block_table[n:],
                seq_lens=step.seq_lens[n:],
                format=self.format,
                d_v=c.kv_lora_rank,
                softmax_scale=c.softmax_scale,
            )
            parts.append(out)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _heads(device: Device, matrices: torch.Tensor) -> deep_gmm.Packed:
    return deep_gmm.prepack(device.to_device(matrices.contiguous()))
