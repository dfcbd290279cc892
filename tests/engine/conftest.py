"""Checkpoints for the engine's tests: small random ones that cover every variant of the class, and the shipped one.

`transformers` writes the random ones and is the yardstick; its float64 form is the oracle (its norms and router compute
in float32 inside, an error of 1e-6 that is far below every bound used here).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.hal import current


@pytest.fixture(autouse=True)
def _fresh_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As for every test, but devices stay open: engines of a module live through all of its tests."""
    monkeypatch.delenv("DEEPINFER_BACKEND", raising=False)
    torch.manual_seed(0)
    yield
    current.forget_choice()


SHIPPED = Path(__file__).parents[2] / "examples" / "models" / "tiny-v3"
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1}
BASE: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 48,
    "q_lora_rank": 40,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 20,
    "max_position_embeddings": 512,
    "pad_token_id": None,
}
# Weights of standard deviation 0.02 keep bfloat16 noise below the gap of 0.1 that the equality rule asks about; on
# wilder models clear arg-maxes move in any implementation. float32 gets twice that, to weigh every path.
SPREAD = {torch.float32: 0.04, torch.bfloat16: 0.02}
VARIANTS: dict[str, dict[str, Any]] = {
    "v3-groups-yarn": {
        "model_type": "deepseek_v3",
        "n_group": 4,
        "topk_group": 2,
        "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    },
    "v3-direct-q-halves": {
        "model_type": "deepseek_v3",
        "q_lora_rank": None,
        "rope_interleave": False,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "n_shared_experts": 2,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 3,
    },
    "v3-kernel-shapes": {
        "model_type": "deepseek_v3",
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "q_lora_rank": 64,
        "hidden_size": 128,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 2,
        "n_group": 2,
        "topk_group": 1,
        "norm_topk_prob": False,
    },
    "v2-greedy": {
        "model_type": "deepseek_v2",
        "q_lora_rank": None,
        "topk_method": "greedy",
        "n_shared_experts": 2,
        "first_k_dense_replace": 0,
        "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "v2-groups": {
        "model_type": "deepseek_v2",
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "routed_scaling_factor": 4.0,
        "n_shared_experts": 1,
    },
}


def write_checkpoint(path: Path, variant: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """A random checkpoint written by transformers; norms and the router's bias are random too."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(**{**BASE, **VARIANTS[variant], "initializer_range": SPREAD[dtype]})
    model = AutoModelForCausalLM.from_config(config)
    for name, tensor in model.state_dict().items():
        if name.endswith("norm.weight"):
            tensor.copy_(1 + 0.2 * torch.randn_like(tensor))
        elif name.endswith(("e_score_correction_bias", ".bias")):
            tensor.copy_(0.1 * torch.randn_like(tensor))
    model.to(dtype).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, torch.dtype], Path]:
    """Directory of a variant in a dtype, written once per session; "shipped" is the one in examples/."""
    made: dict[tuple[str, torch.dtype], Path] = {}

    def get(variant: str, dtype: torch.dtype = torch.float32) -> Path:
        if variant == "shipped":
            return SHIPPED
        key = (variant, dtype)
        if key not in made:
            made[key] = write_checkpoint(tmp_path_factory.mktemp(variant), variant, dtype)
        return made[key]

    return get


@pytest.fixture(scope="session")
def yardstick() -> Callable[[Path, torch.dtype], Any]:
    """The transformers model of a directory in a dtype; float64 is the oracle of the stored weights."""
    made: dict[tuple[Path, torch.dtype], Any] = {}

    def get(path: Path, dtype: torch.dtype) -> Any:
        from transformers import AutoModelForCausalLM

        key = (path, dtype)
        if key not in made:
            model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
            if dtype is torch.float64:
                model.set_experts_implementation("eager")  # grouped_mm takes no float64
            made[key] = model.eval()
        return made[key]

    return get


@pytest.fixture(scope="session")
def teacher(yardstick: Callable[[Path, torch.dtype], Any]) -> Callable[[Path, torch.dtype, list[int]], torch.Tensor]:
    """Log-probabilities [n, vocab] float64 that the yardstick gives after each of n tokens."""

    def get(path: Path, dtype: torch.dtype, tokens: list[int]) -> torch.Tensor:
        ids = torch.tensor([tokens])
        with torch.no_grad():
            logits = yardstick(path, dtype)(ids, attention_mask=torch.ones_like(ids)).logits[0]
        return torch.log_softmax(logits.double(), -1)

    return get
