"""From logits to tokens: gathers the parameters of a batch of sequences for `sampling.sample`, and records log-probs.

Per-row parameter tensors are kept as long as the same sequences are sampled, which is the steady state of decoding.
"""

from __future__ import annotations

import numpy as np
import torch

from deepinfer.engine.logprobs import describe
from deepinfer.engine.request import Sequence
from deepinfer.engine.tokenizer import Tokenizer
from deepinfer.hal import Device
from deepinfer.ops import sampling


class Sampler:
    """Sampling for one engine; `vocab` token ids."""

    def __init__(self, device: Device, vocab: int) -> None:
        self._device, self._vocab = device, vocab
        self._sequences: list[Sequence] = []
        self._rows: dict[str, torch.Tensor] = {}

    def __call__(self, logits: torch.Tensor, sequences: list[Sequence]) -> tuple[list[int], list[bool]]:
        """One token per row of `logits` [n, vocab] float32, and whether the row was free of NaN."""
        if sequences != self._sequences:
            self._sequences, self._rows = list(sequences), self._parameters(sequences)
        positions = self._tensor(np.array([len(s.tokens) for s in sequences], np.int64))
        ids, valid, _ = sampling.sample(logits, positions=positions, **self._rows)
        return ids.tolist(), valid.tolist()

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return self._device.to_device(torch.from_numpy(values))

    def _parameters(self, sequences: list[Sequence]) -> dict[str, torch.Tensor]:
        params = [s.request.params for s in sequences]
        columns = {
            "temperature": np.array([p.temperature for p in params], np.float32),
            "top_k": np.array([min(p.top_k, self._vocab) if p.top_k > 0 else self._vocab for p in params], np.int64),
            "top_p": np.array([p.top_p for p in params], np.float32),
            "min_p": np.array([p.min_p for p in params], np.float32),
            "seeds": np.array([s.request.seed for s in sequences], np.int64),
            "sample_index": np.array([s.completion.index for s in sequences], np.int64),
        }
        return {name: self._tensor(column) for name, column in columns.items()}

    def record_logprobs(
        self,
        logits: torch.Tensor,
        sequences: list[Sequence],
        tokens: list[int],
        valid: list[bool],
        tokenizer: Tokenizer | None,
    ) -> None:
        """Append the log-probabilities that sequences asked for."""
        rows = [i for i, s in enumerate(sequences) if s.request.params.logprobs is not None and valid[i]]
        if not rows:
            return
        table = torch.log_softmax(logits[torch.tensor(rows, device=logits.device)], -1)
        top = [sequences[i].request.params.logprobs or 0 for i in rows]
        for i, entry in zip(rows, describe(table, [tokens[i] for i in rows], top, tokenizer), strict=True):
            completion = sequences[i].completion
            if completion.logprobs is not None and completion.cumulative_logprob is not None:
                completion.logprobs.append(entry)
                completion.cumulative_logprob += entry[tokens[i]].logprob
