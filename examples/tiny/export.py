"""Writes the trained network as a Hugging Face directory in bf16.

Invariant: the names are those of the published deepseek_v3 checkpoints; the ranking bias stays f32, as there.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tiny import tokenizer
from tiny.config import BOS, EOS, PAD
from tiny.network import TinyModel


@torch.no_grad()
def round_weights(model: TinyModel) -> None:
    """Round every parameter to bf16 in place, so that what is measured afterwards is what ships."""
    for param in model.parameters():
        param.copy_(param.bfloat16())


def checkpoint(model: TinyModel) -> dict[str, Tensor]:
    """Tensors under their published names; stacked experts are taken apart."""
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if name.endswith("bias"):
            tensors[f"model.{name}"] = value.float()
        elif name.endswith((".w13", ".w2")):
            prefix, _, kind = name.rpartition(".")
            for index, expert in enumerate(value.bfloat16()):
                tensors |= _expert(f"model.{prefix}.experts.{index}", kind, expert)
        else:
            tensors[name if name.startswith("lm_head") else f"model.{name}"] = value.bfloat16()
    return {name: value.cpu().contiguous() for name, value in tensors.items()}


def _expert(prefix: str, kind: str, weight: Tensor) -> dict[str, Tensor]:
    if kind == "w2":
        return {f"{prefix}.down_proj.weight": weight}
    gate, up = weight.chunk(2)
    return {f"{prefix}.gate_proj.weight": gate, f"{prefix}.up_proj.weight": up}


def write(model: TinyModel, directory: Path) -> int:
    """Write the directory and return its size in bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(checkpoint(model), directory / "model.safetensors", metadata={"format": "pt"})
    config = json.dumps(model.config.to_hugging_face(), indent=2)
    (directory / "config.json").write_text(config + "\n")
    generation = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "do_sample": True, "temperature": 0.7}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tokenizer.write(directory, model.config.positions)
    return sum(path.stat().st_size for path in directory.iterdir())
