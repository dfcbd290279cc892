"""What the model code needs to know about a `deepseek_v3` or `deepseek_v2` checkpoint, parsed from its config.json.

Invariant: a `ModelConfig` is complete and consistent; every field that would change the numbers is either honoured or
refused here by name, so the layers below need no checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deepinfer.errors import CheckpointError
from deepinfer.models.fields import Fields, read_json
from deepinfer.models.rope_config import RopeConfig, parse_rope
from deepinfer.ops import rope

MODEL_TYPES = ("deepseek_v3", "deepseek_v2")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MAX_LAYERS = 10_000  # a hundred times the deepest model; a larger number is a damaged file


@dataclass(frozen=True)
class RoutingConfig:
    """How tokens choose experts. `n_group` = 1: no group limit; `correction_bias`: a learned bias helps to rank."""

    experts: int
    top_k: int
    scoring: str
    n_group: int
    topk_group: int
    group_score: str
    renormalize: bool
    scale: float
    correction_bias: bool


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and switches of one model. Widths in elements; `dtype` is what the checkpoint's linears are stored in."""

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    n_shared_experts: int
    routing: RoutingConfig | None
    first_k_dense_replace: int
    moe_layer_freq: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    mtp_layers: int
    dtype: torch.dtype | None
    fp8_block: tuple[int, int] | None
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    @property
    def latent_dim(self) -> int:
        """Channels of one cache row: the compressed latent and the rotary part of the key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """1/sqrt(head width), times YaRN's magnitude correction."""
        return float(self.qk_head_dim**-0.5 * rope.softmax_factor(self.rope.scaling))

    def is_moe(self, layer: int) -> bool:
        """Whether layer `layer` (0-based) has routed experts."""
        return self.routing is not None and layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0


def load_config(directory: Path) -> ModelConfig:
    """Parse `directory`/config.json.

    Raises:
        CheckpointError: the file is missing or malformed, or asks for something this model code does not compute.
    """
    try:
        found = directory.is_dir()
    except OSError as error:  # a name that no file system takes
        raise CheckpointError(f"{directory}: cannot be opened: {error.strerror}") from error
    if not found:
        raise CheckpointError(f"{directory}: is not a directory with a checkpoint")
    path = directory / "config.json"
    return parse_config(read_json(path), str(path))


def parse_config(data: dict[str, Any], where: str = "config.json") -> ModelConfig:
    """Build a `ModelConfig` from the JSON object of a config.json; `where` opens error messages.

    Raises:
        CheckpointError: a field is missing or malformed, or asks for something this model code does not compute.
    """
    f = Fields(data, where)
    model_type = f.choice("model_type", "", MODEL_TYPES)
    v3 = model_type == "deepseek_v3"
    _refuse_unknown(f)
    heads = f.integer("num_attention_heads", high=128)
    if f.integer("num_key_value_heads", heads) != heads:
        raise f.error("num_key_value_heads", f"must equal num_attention_heads ({heads}) in latent attention")
    rope_dim = f.integer("qk_rope_head_dim", 64)
    if rope_dim % 2:
        raise f.error("qk_rope_head_dim", "must be even")
    positions = f.integer("max_position_embeddings", 4096 if v3 else 2048)
    return ModelConfig(
        model_type=model_type,
        vocab_size=f.integer("vocab_size"),
        hidden_size=f.integer("hidden_size"),
        layers=f.integer("num_hidden_layers", high=MAX_LAYERS),
        heads=heads,
        q_lora_rank=_q_lora_rank(f),
        kv_lora_rank=f.integer("kv_lora_rank", 512),
        qk_nope_head_dim=f.integer("qk_nope_head_dim", 128),
        qk_rope_head_dim=rope_dim,
        v_head_dim=f.integer("v_head_dim", 128),
        intermediate_size=f.integer("intermediate_size"),
        moe_intermediate_size=f.integer("moe_intermediate_size", 2048 if v3 else 1407),
        n_shared_experts=f.integer("n_shared_experts", _shared(f, v3), low=0),
        routing=_parse_routing(f, v3),
        first_k_dense_replace=f.integer("first_k_dense_replace", 3 if v3 else 0, low=0),
        moe_layer_freq=f.integer("moe_layer_freq", 1),
        rms_norm_eps=f.number("rms_norm_eps", 1e-6),
        rope=parse_rope(f, rope_dim, positions, interleaved=f.boolean("rope_interleave", True) if v3 else True),
        max_position_embeddings=positions,
        tie_word_embeddings=f.boolean("tie_word_embeddings", False),
        attention_bias=f.boolean("attention_bias", False),
        mlp_bias=f.boolean("mlp_bias", False) and not v3,
        mtp_layers=f.integer("num_nextn_predict_layers", 0, low=0),
        dtype=_parse_dtype(f),
        fp8_block=_parse_quantization(f),
        eos_token_ids=parse_token_ids(f, "eos_token_id"),
        bos_token_id=f.integer("bos_token_id", low=0) if f.present("bos_token_id") else None,
    )


def _refuse_unknown(f: Fields) -> None:
    f.choice("hidden_act", "silu", ("silu",))
    if f.present("auto_map") and not f.present("architectures"):
        raise f.error("auto_map", "remote code is never run; the checkpoint must state architectures")


def _q_lora_rank(f: Fields) -> int | None:
    if "q_lora_rank" not in f.data:
        raise f.error("q_lora_rank", "is required (null for a direct query projection)")
    return f.integer("q_lora_rank") if f.present("q_lora_rank") else None


def parse_token_ids(f: Fields, name: str) -> tuple[int, ...]:
    """A token id or a list of token ids; empty when absent."""
    value = f.data.get(name)
    values = [] if value is None else value if isinstance(value, list) else [value]
    for entry in values:
        if isinstance(entry, bool) or not isinstance(entry, int) or entry < 0:
            raise f.error(name, "must be a token id >= 0 or a list of them")
    return tuple(values)


def _shared(f: Fields, v3: bool) -> int:
    """Shared experts where the file names no number: what the classes have; null = none."""
    return 0 if "n_shared_experts" in f.data or not f.present("n_routed_experts") else 1 if v3 else 2


def _parse_routing(f: Fields, v3: bool) -> RoutingConfig | None:
    if not f.present("n_routed_experts"):
        return None
    experts = f.integer("n_routed_experts", high=65536)
    method = f.choice("topk_method", "noaux_tc" if v3 else "greedy", ("noaux_tc", "greedy", "group_limited_greedy"))
    scoring = f.choice("scoring_func", "sigmoid" if v3 else "softmax", ("sigmoid", "softmax"))
    grouped = method != "greedy"
    n_group = f.integer("n_group", 8 if v3 and "n_group" not in f.data else 1) if grouped else 1
    if experts % n_group:
        raise f.error("n_group", f"must divide n_routed_experts ({experts})")
    allowed = 4 if v3 and "topk_group" not in f.data else n_group
    topk_group = f.integer("topk_group", allowed, high=n_group) if grouped else 1
    biased = method == "noaux_tc"
    renormalize, scale = f.boolean("norm_topk_prob", v3), f.number("routed_scaling_factor", 2.5 if v3 else 1.0)
    if renormalize and not v3 and scale != 1.0:  # the class's code, transformers and vLLM all do something else
        raise f.error("norm_topk_prob", f"has no agreed meaning in deepseek_v2 with routed_scaling_factor {scale}; "
                      "one of the two must be off")
    if biased and n_group > 1 and experts // n_group < 2:
        raise f.error("n_group", "noaux_tc scores a group by its two best experts, so a group needs at least two")
    return RoutingConfig(
        experts=experts,
        top_k=f.integer("num_experts_per_tok", high=experts // n_group * topk_group),
        scoring=scoring,
        n_group=n_group,
        topk_group=topk_group,
        group_score="top2_sum" if biased else "max",
        renormalize=renormalize,
        scale=scale,
        correction_bias=biased,
    )


def _parse_dtype(f: Fields) -> torch.dtype | None:
    name = "dtype" if f.present("dtype") else "torch_dtype"
    if not f.present(name):
        return None
    text = f.data[name]
    text = text.removeprefix("torch.") if isinstance(text, str) else None
    if text not in DTYPES:
        raise f.error(name, f"must be one of {', '.join(DTYPES)}")
    return DTYPES[text]


def _parse_quantization(f: Fields) -> tuple[int, int] | None:
    q = f.object("quantization_config")
    if q is None:
        return None
    q.choice("quant_method", "", ("fp8",))
    q.choice("fmt", "e4m3", ("e4m3",))
    block = q.data.get("weight_block_size", [128, 128])
    if block != [128, 128]:
        raise q.error("weight_block_size", "must be [128, 128]")
    return (128, 128)
