"""Random small checkpoints over the whole space of the class, and what `transformers` makes of them.

A seed decides everything: widths (odd ones too), routing, rotary scaling, biases, dtype, float8, shards, leftovers.
Where published code and `transformers` differ (0004-engine.md), the yardstick is given what the class's own code does:
the plain router below, and dense layers where `moe_layer_freq` says so.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

BLOCK = 128
CLOSE = 1e-5  # of two scores of which one is taken, below which float32 may take the other


@dataclass
class RandomModel:
    """A checkpoint directory and its yardstick; `kind` is "float32", "bfloat16" or "float8"."""

    path: Path
    kind: str
    config: dict[str, Any]
    yardstick: Any

    def teacher(self, dtype: torch.dtype, tokens: list[int]) -> torch.Tensor:
        """Log-probabilities [n, vocab] float64 after each of n tokens, computed in `dtype`."""
        return self._run(dtype, tokens)[0]

    def oracle(self, tokens: list[int]) -> tuple[torch.Tensor, int]:
        """The same in float64, and how many positions come before the first where rounding decides about an expert."""
        table, margins = self._run(torch.float64, tokens)
        close = (margins < CLOSE).nonzero()
        return table, int(close[0]) if len(close) else len(tokens)

    def _run(self, dtype: torch.dtype, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        model = _cast(copy.deepcopy(self.yardstick), dtype)
        model.set_experts_implementation("eager")
        ids = torch.tensor([tokens])
        with torch.no_grad():
            logits = model(ids, attention_mask=torch.ones_like(ids)).logits[0]
        gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
        margins = torch.stack([torch.full((len(tokens),), math.inf), *(gate.margins for gate in gates)]).amin(0)
        return torch.log_softmax(logits.double(), -1), margins


def random_config(seed: int) -> dict[str, Any]:
    """A config.json of the class."""
    r = random.Random(seed)
    heads = r.choice([1, 2, 3, 5, 7])
    layers = r.randint(1, 4)
    n_group = r.choice([1, 1, 2, 3, 4])
    experts = n_group * r.randint(2, 4)
    v3 = r.random() < 0.6
    topk_group = r.randint(1, n_group)
    config: dict[str, Any] = {
        "model_type": "deepseek_v3" if v3 else "deepseek_v2",
        "vocab_size": r.choice([51, 97, 130, 201]),
        "hidden_size": heads * r.randint(9, 40),
        "intermediate_size": r.randint(17, 90),
        "moe_intermediate_size": r.randint(5, 70),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "n_routed_experts": experts,
        "n_group": n_group,
        "topk_group": topk_group,
        "num_experts_per_tok": r.randint(1, min(4, experts // n_group * topk_group)),
        "first_k_dense_replace": r.randint(0, layers),
        "moe_layer_freq": r.choice([1, 1, 1, 2, 3]),
        "n_shared_experts": r.choice([0, 1, 2]),
        "q_lora_rank": r.choice([None, r.randint(7, 70)]),
        "kv_lora_rank": r.randint(9, 150),
        "qk_rope_head_dim": 2 * r.randint(1, 20),
        "qk_nope_head_dim": r.randint(1, 48),
        "v_head_dim": r.randint(1, 48),
        "rms_norm_eps": r.choice([1e-6, 1e-5, 1e-3]),
        "max_position_embeddings": 512,
        "routed_scaling_factor": r.choice([1.0, 2.5, 0.3]),
        "attention_bias": r.random() < 0.3,
        "tie_word_embeddings": r.random() < 0.3,
        "pad_token_id": None,
        "num_nextn_predict_layers": r.choice([0, 0, 1, 2]),
    }
    config |= _routing(r, v3, config) | _rotary(r, v3)
    return config


def _routing(r: random.Random, v3: bool, config: dict[str, Any]) -> dict[str, Any]:
    norm = r.random() < 0.5
    found: dict[str, Any] = {
        "topk_method": r.choice(["noaux_tc"] * 3 + ["greedy", "group_limited_greedy"]) if v3
        else r.choice(["greedy", "greedy", "group_limited_greedy", "group_limited_greedy", "noaux_tc"]),
        "scoring_func": r.choice(["sigmoid", "sigmoid", "softmax"] if v3 else ["softmax", "softmax", "sigmoid"]),
        "norm_topk_prob": norm,
    }
    if not v3:
        found["mlp_bias"] = r.random() < 0.3
        if norm:
            found["routed_scaling_factor"] = 1.0  # the published code applies one of the two, not both
        found["mlp_bias"] = found["mlp_bias"] and config["n_shared_experts"] > 0
    if found["topk_method"] == "greedy":
        found |= {"num_experts_per_tok": min(config["num_experts_per_tok"], config["n_routed_experts"])}
    return found


def _rotary(r: random.Random, v3: bool) -> dict[str, Any]:
    yarn = {
        "type": "yarn", "factor": r.choice([1.0, 2.0, 4.0, 40.0]), "beta_fast": r.choice([32, 8]),
        "beta_slow": r.choice([1, 2]), "original_max_position_embeddings": r.choice([64, 128, 256]),
    }
    scaling = r.choice([
        None, None, {"type": "linear", "factor": 3.0}, yarn, {**yarn, "mscale": 1.0, "mscale_all_dim": 1.0},
        {**yarn, "mscale": 0.7, "mscale_all_dim": 1.2}, {**yarn, "mscale_all_dim": 0.9}, {**yarn, "mscale": 0.707},
        {**yarn, "attention_factor": 1.3}, {**yarn, "truncate": False},
    ])  # fmt: skip
    found: dict[str, Any] = {"rope_theta": r.choice([10000.0, 500.0, 1e6]), "rope_scaling": scaling}
    if v3:
        found["rope_interleave"] = r.random() < 0.6
    return found


def _best(worth: dict[int, float], count: int) -> tuple[list[int], float]:
    """The `count` best keys and how far the last of them is from the next."""
    order = sorted(worth, key=lambda key: -worth[key])
    margin = worth[order[count - 1]] - worth[order[count]] if count < len(order) else math.inf
    return order[:count], margin


def _plain_route(self: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The router of the class's published code, token by token."""
    c = self.plain
    hidden = hidden.view(-1, hidden.shape[-1])
    logits = torch.nn.functional.linear(hidden.float(), self.weight.float())
    scores = logits.sigmoid() if c["scoring_func"] == "sigmoid" else logits.softmax(-1)
    ranked = scores + self.e_score_correction_bias.float() if c["topk_method"] == "noaux_tc" else scores
    size = c["n_routed_experts"] // c["n_group"]
    ids, margins = [], []
    for row in ranked:
        margin = math.inf
        allowed = list(range(row.numel()))
        if c["topk_method"] != "greedy":
            best = [row[g * size : (g + 1) * size].sort(descending=True).values for g in range(c["n_group"])]
            worth = [float(b[:2].sum() if c["topk_method"] == "noaux_tc" else b[0]) for b in best]
            groups, margin = _best(dict(enumerate(worth)), c["topk_group"])
            allowed = [e for e in allowed if e // size in groups]
        taken, other = _best({e: float(row[e]) for e in allowed}, c["num_experts_per_tok"])
        ids.append(taken)
        margins.append(min(margin, other))
    self.margins = torch.tensor(margins)
    chosen = torch.tensor(ids)
    weights = scores.gather(1, chosen)
    if c["norm_topk_prob"]:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return logits, weights * c["routed_scaling_factor"], chosen


def random_model(root: Path, seed: int, kind: str | None = None) -> RandomModel:
    """Write the checkpoint of `seed` below `root`, stored as `kind` or as the seed has it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = random_config(seed)
    r = random.Random(seed + 10**6)
    kind = r.choice(["float32", "float32", "bfloat16", "bfloat16", "float8"]) if kind is None else kind
    torch.manual_seed(seed)
    given = {k: v for k, v in config.items() if k not in ("num_nextn_predict_layers", "rope_scaling", "rope_theta")}
    rope = {"rope_theta": config["rope_theta"]}
    if config["rope_scaling"] is not None:
        rope |= {"rope_type" if k == "type" else k: v for k, v in config["rope_scaling"].items()}
    given |= {"rope_parameters": rope, "initializer_range": 0.1 if kind == "float32" else 0.02}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**given)).eval()
    if config["model_type"] == "deepseek_v2":
        code = sys.modules[type(model).__module__]
        if code.apply_rotary_emb.__module__ != __name__:
            code.apply_rotary_emb = _even_strides(code.apply_rotary_emb)
    _specialise(model, config)
    for name, tensor in model.state_dict().items():
        if name.endswith("norm.weight"):
            tensor.copy_(1 + 0.2 * torch.randn_like(tensor))
        elif name.endswith(("e_score_correction_bias", ".bias")):
            tensor.copy_(0.1 * torch.randn_like(tensor))
    if kind != "float32":
        _cast(model, torch.bfloat16)
    path = root / f"random-{seed}"
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    if kind == "float8":
        _quantize(model, tensors, path)
    _write(path, tensors, config, kind, r)
    return RandomModel(path, kind, config, model)


def _cast(model: Any, dtype: torch.dtype) -> Any:
    """`model` with its weights in `dtype`; the frequencies stay float32, as where it is loaded from a file."""
    model.to(dtype)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model


def _specialise(model: Any, config: dict[str, Any]) -> None:
    """What `transformers` leaves out of the class."""
    for number, layer in enumerate(model.model.layers):
        if not hasattr(layer.mlp, "gate"):
            continue
        if number % config["moe_layer_freq"]:
            dense = type(layer.mlp.shared_experts)(model.config)
            for weight in dense.parameters():
                torch.nn.init.normal_(weight, std=model.config.initializer_range)
            layer.mlp = dense
            continue
        gate = layer.mlp.gate
        if config["topk_method"] != "noaux_tc":
            gate._buffers.pop("e_score_correction_bias", None)
        elif "e_score_correction_bias" not in gate._buffers:
            gate.register_buffer("e_score_correction_bias", torch.zeros(config["n_routed_experts"]))
        gate.plain = config
        gate.forward = _plain_route.__get__(gate)


def _even_strides(rotate: Any) -> Any:
    """`transformers` views rotary parts as complex numbers, which torch refuses where an odd width lies before them."""

    def rotated(q: torch.Tensor, k: torch.Tensor, frequencies: torch.Tensor) -> Any:
        return rotate(q.contiguous(), k.contiguous(), frequencies)

    return rotated


def _quantize(model: Any, tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Turn the linears into float8 with block scales, and the yardstick's weights into the values they stand for."""
    for name in [n for n in tensors if n.endswith("proj.weight") or "kv_a_proj_with_mqa.weight" in n]:
        weight = tensors[name].float()
        if weight.numel() == 0:
            continue
        rows, cols = (-(-size // BLOCK) for size in weight.shape)
        scale = torch.empty(rows, cols)
        data = torch.empty_like(weight)
        for i in range(rows):
            for j in range(cols):
                part = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
                scale[i, j] = weight[part].abs().max().clamp(min=1e-12) / 448
                data[part] = (weight[part] / scale[i, j]).to(torch.float8_e4m3fn).float()
                weight[part] = data[part] * scale[i, j]
        tensors[name], tensors[name + "_scale_inv"] = data.to(torch.float8_e4m3fn), scale
        _set(model, name, weight)


def _set(model: Any, name: str, value: torch.Tensor) -> None:
    """Give the yardstick, which stores experts stacked, the weight of a checkpoint name in float32."""
    _cast(model, torch.float32)
    parts = name.removesuffix(".weight").split(".")
    if "experts" in parts and "shared_experts" not in parts:
        at = parts.index("experts")
        stack = model.get_submodule(".".join(parts[: at + 1]))
        expert, kind = int(parts[at + 1]), parts[at + 2]
        if kind == "down_proj":
            stack.down_proj.data[expert] = value
        else:
            half = stack.gate_up_proj.shape[1] // 2
            stack.gate_up_proj.data[expert, half * (kind == "up_proj") :][:half] = value
        return
    model.get_submodule(".".join(parts)).weight.data.copy_(value)


def _write(path: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any], kind: str, r: random.Random) -> None:
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    for extra in range(config["num_nextn_predict_layers"]):
        prefix = f"model.layers.{layers + extra}."
        tensors[prefix + "eh_proj.weight"] = torch.full((hidden, 2 * hidden), float("nan"))
        tensors[prefix + "embed_tokens.weight"] = torch.zeros(3, 3, dtype=torch.int8)
    if r.random() < 0.3:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    written = {**config, "torch_dtype": "float32" if kind == "float32" else "bfloat16"}
    if kind == "float8":
        written["quantization_config"] = {
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK],
        }  # fmt: skip
    (path / "config.json").write_text(json.dumps(written), "utf-8")
    if r.random() < 0.5:
        save_file(tensors, path / "model.safetensors")
        return
    (path / "model.safetensors").unlink()
    count, index = r.randint(1, 4), {}
    for number in range(count):
        part = {n: t for i, (n, t) in enumerate(sorted(tensors.items())) if i % count == number}
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        save_file(part, path / file)
        index |= dict.fromkeys(part, file)
    document = {"metadata": {"total_size": 1}, "weight_map": index, "comment": "extra"}
    (path / "model.safetensors.index.json").write_text(json.dumps(document), "utf-8")
