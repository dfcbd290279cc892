"""Sizes of the tiny `deepseek_v3`-class model and their spelling in a Hugging Face `config.json`.

Invariant: the widths that choose a kernel are those of the full-size class (latent 512, rotary 64, so 576-wide
absorbed queries; 128-wide heads; expert width a multiple of 128), only the counts are small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BOS, EOS, PAD, RESERVED = 256, 257, 258, 259  # token ids 0..255 are the bytes


@dataclass(frozen=True)
class TinyConfig:
    """Model sizes; all widths in elements."""

    vocab: int = 260
    hidden: int = 256
    layers: int = 3
    heads: int = 2
    q_rank: int = 128
    kv_rank: int = 512
    nope: int = 128
    rope: int = 64
    value: int = 128
    dense_width: int = 384
    expert_width: int = 128
    experts: int = 8
    top_k: int = 2
    dense_layers: int = 1
    routed_scale: float = 2.0
    theta: float = 10000.0
    eps: float = 1e-6
    positions: int = 1024

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of config.json."""
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "q_lora_rank": self.q_rank,
            "kv_lora_rank": self.kv_rank,
            "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rope,
            "v_head_dim": self.value,
            "intermediate_size": self.dense_width,
            "moe_intermediate_size": self.expert_width,
            "n_routed_experts": self.experts,
            "n_shared_experts": 1,
            "num_experts_per_tok": self.top_k,
            "first_k_dense_replace": self.dense_layers,
            "moe_layer_freq": 1,
            "n_group": 1,
            "topk_group": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "routed_scaling_factor": self.routed_scale,
            "hidden_act": "silu",
            "rms_norm_eps": self.eps,
            "max_position_embeddings": self.positions,
            "rope_theta": self.theta,
            "rope_scaling": None,
            "rope_interleave": True,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": False,
            "num_nextn_predict_layers": 0,
            "initializer_range": 0.02,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
            "torch_dtype": "bfloat16",
            "use_cache": True,
        }
