"""The model that level L3 runs, and engines over it, opened once per device and option set."""

from __future__ import annotations

import json
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.conformance.item import Target

if TYPE_CHECKING:
    from deepinfer.engine import LLM, SamplingParams

NEW_TOKENS = 24
SEED = 3
# Lengths 1, 5, 63, 64, 65 and 130: one token, odd, and both sides of a cache block of 64.
PROMPTS: list[list[int]] = [[(7 * n * n + 13 * i * i + i) % 250 for i in range(n)] for n in (1, 5, 63, 64, 65, 130)]

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 256, "hidden_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 64, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 256,
    "moe_intermediate_size": 128, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 2, "topk_group": 1, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "max_position_embeddings": 1024, "rope_theta": 10000.0, "rope_scaling": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
}

Run = list[tuple[list[int], list[float]]]


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A directory with the random model's config.json; removed at exit."""
    folder = tempfile.TemporaryDirectory(prefix="deepinfer-conformance-")
    (Path(folder.name) / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    return folder


class Session:
    """Engines of one target. `greedy` results are remembered, engines are kept open."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._engines: dict[tuple[Any, ...], LLM] = {}

    def llm(self, device: str | None = None, low: bool = False, **options: Any) -> LLM:
        """An engine on the target's device (or `device`); `low` computes in bfloat16."""
        from deepinfer.engine import LLM

        key = (device, low, *sorted(options.items()))
        if key not in self._engines:
            dtype = "bfloat16" if low else "float32"
            sizes = {"num_blocks": 64, "max_model_len": 256, "seed": SEED}
            made: dict[str, Any] = {"dtype": dtype, "activation_dtype": dtype, **sizes, **options}
            if self.target.model is None:
                made["load_format"] = "dummy"
            path = self.target.model or _folder().name
            self._engines[key] = LLM(path, device=device or self.target.device, **made)
        return self._engines[key]

    @staticmethod
    def params() -> SamplingParams:
        """Greedy, a fixed number of new tokens, the chosen token's log-probability."""
        from deepinfer.engine import SamplingParams

        return SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)

    def greedy(self, prompts: list[list[int]] | None = None, device: str | None = None, **options: Any) -> Run:
        """(tokens, their log-probabilities) per prompt."""
        chosen = PROMPTS if prompts is None else prompts
        outputs = self.llm(device, **options).generate([list(p) for p in chosen], self.params(), use_tqdm=False)
        found: Run = []
        for output in outputs:
            if output.error is not None:
                raise output.error
            sample = output.outputs[0]
            tables = sample.logprobs or []
            logs = [table[token].logprob for token, table in zip(sample.token_ids, tables, strict=True)]
            found.append((list(sample.token_ids), logs))
        return found

    def score(self, texts: list[list[int]], device: str | None = None, low: bool = False) -> torch.Tensor:
        """[tokens of all texts, vocab] float64 log-probabilities."""
        return torch.cat([table.double() for table in self.llm(device, low).score(texts, full_vocab=True)])


_sessions: dict[int, Session] = {}


def session(target: Target) -> Session:
    """The session of `target`, made on first use."""
    found = _sessions.get(id(target))
    if found is None or found.target is not target:
        _sessions.clear()
        found = _sessions[id(target)] = Session(target)
    return found
