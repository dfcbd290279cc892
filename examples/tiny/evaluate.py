"""What is reported after training: held-out bits per byte and samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tiny.config import BOS, EOS
from tiny.network import TinyModel


@torch.no_grad()
def bits_per_byte(model: TinyModel, stream: Tensor, window: int, limit: int, batch: int = 32) -> float:
    """Code length of `stream` (token ids) under the model, in bits, over its number of bytes.

    The stream is cut into windows without overlap; the model sees nothing before a window. BOS and EOS are coded too
    but are no bytes. At most `limit` tokens are used.
    """
    count = (min(stream.numel(), limit) - 1) // window
    bits, n_bytes = 0.0, 0
    for start in range(0, count, batch):
        rows = torch.arange(start, min(start + batch, count), device=stream.device)[:, None] * window
        tokens = stream[rows + torch.arange(window + 1, device=stream.device)].long()
        logits, _ = model(tokens[:, :-1])
        bits += F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").item()
        n_bytes += int((tokens[:, 1:] < BOS).sum())
    return bits / math.log(2) / max(n_bytes, 1)


@torch.no_grad()
def sample(model: TinyModel, prompts: Sequence[str], length: int, temperature: float, seed: int) -> list[str]:
    """Continue each prompt by at most `length` bytes; every step recomputes the prefix (no cache here)."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    texts = []
    for prompt in prompts:
        ids = torch.tensor([[BOS, *prompt.encode()]], device=device)
        for _ in range(min(length, model.config.positions - ids.shape[1])):
            logits, _ = model(ids)
            weights = (logits[:, -1].float() / temperature).softmax(-1)
            chosen = torch.multinomial(weights, 1, generator=generator)
            if chosen.item() == EOS:
                break
            ids = torch.cat((ids, chosen), 1)
        texts.append(bytes(token for token in ids[0, 1:].tolist() if token < BOS).decode("utf-8", "replace"))
    return texts
