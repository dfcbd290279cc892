"""From logits to tokens: gathers the parameters of a batch of sequences for `sampling.sample`, and records log-probs.

Per-row parameter tensors are kept as long as the same sequences are sampled, which is the steady state of decoding.
A rule that no row uses is not passed at all, so it costs nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from deepinfer.engine.logprobs import describe
from deepinfer.engine.request import Sequence
from deepinfer.engine.tokenizer import Tokenizer
from deepinfer.hal import Device
from deepinfer.ops import sampling

Array = np.ndarray[Any, np.dtype[Any]]
NEUTRAL = {"top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
PENALTIES = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
STEP = 64  # columns by which the token history grows, so that its shape changes rarely


class Sampler:
    """Sampling for one engine; `vocab` token ids."""

    def __init__(self, device: Device, vocab: int) -> None:
        self._device, self._vocab = device, vocab
        self._sequences: list[Sequence] = []
        self._fixed: dict[str, torch.Tensor] = {}
        self._history: Array | None = None
        self._watch_minimum = self._greedy = False

    def __call__(self, logits: torch.Tensor, sequences: list[Sequence]) -> tuple[list[int], list[bool]]:
        """One token per row of `logits` [n, vocab] float32, and whether the row could be sampled (no NaN)."""
        if sequences != self._sequences:
            self._start(sequences)
        given: dict[str, Any] = dict(self._fixed)
        if self._greedy:
            given["temperature"] = 0
        else:
            given["positions"] = self._tensor(np.array([len(s.tokens) for s in sequences], np.int64))
        if self._history is not None:
            given["history"] = self._tensor(self._grow_history(sequences, self._history))
        if self._watch_minimum:
            self._ban_ends(sequences, given)
        ids, valid, _ = sampling.sample(logits, logprobs="none", **given)
        return ids.tolist(), valid.tolist()

    def release(self) -> None:
        """Drop the parameters of the last batch."""
        self._start([])

    def _tensor(self, values: Array) -> torch.Tensor:
        return self._device.to_device(torch.from_numpy(values))

    def _start(self, sequences: list[Sequence]) -> None:
        """Collect what stays the same while these sequences are sampled."""
        self._sequences = list(sequences)
        params = [s.request.params for s in sequences]
        columns: dict[str, Array] = {
            "temperature": np.array([p.temperature for p in params], np.float32),
            "top_k": np.array([min(max(p.top_k, 0), self._vocab) for p in params], np.int64),
            "top_p": np.array([p.top_p for p in params], np.float32),
            "min_p": np.array([p.min_p for p in params], np.float32),
            "seeds": np.array([s.request.seed for s in sequences], np.int64),
            "sample_index": np.array([s.completion.index for s in sequences], np.int64),
        }
        self._greedy = not columns["temperature"].any()
        if self._greedy:  # nothing of what shapes or draws a distribution changes an arg-max
            columns = {}
        for name, neutral in NEUTRAL.items():
            if name in columns and (columns[name] == neutral).all():
                del columns[name]
        self._history = None
        if any(p.has_penalties for p in params):
            columns.update(self._penalties(sequences))
        if any(p.logit_bias for p in params):
            columns.update(_bias(sequences))
        self._watch_minimum = any(p.min_tokens > s.new_tokens for p, s in zip(params, sequences, strict=True))
        self._fixed = {name: self._tensor(column) for name, column in columns.items()}

    def _penalties(self, sequences: list[Sequence]) -> dict[str, Array]:
        params = [s.request.params for s in sequences]
        self._history = np.full((len(sequences), 0), -1, np.int64)
        columns: dict[str, Array] = {
            "repetition_penalty": np.array([p.repetition_penalty for p in params], np.float32),
            "frequency_penalty": np.array([p.frequency_penalty for p in params], np.float32),
            "presence_penalty": np.array([p.presence_penalty for p in params], np.float32),
        }
        columns = {name: column for name, column in columns.items() if (column != PENALTIES[name]).any()}
        columns["prompt_lens"] = np.array([len(s.request.prompt_ids) for s in sequences], np.int64)
        return columns

    def _grow_history(self, sequences: list[Sequence], history: Array) -> Array:
        """Tokens of every row that is penalised, -1 behind them. The last column is always free for the next step."""
        longest = max((len(s.tokens) for s in sequences if s.request.params.has_penalties), default=0)
        if longest > history.shape[1]:
            history = np.full((len(sequences), -(-longest // STEP) * STEP), -1, np.int64)
            for row, sequence in enumerate(sequences):
                if sequence.request.params.has_penalties:
                    history[row, : len(sequence.tokens)] = sequence.tokens
            self._history = history
            return history
        for row, sequence in enumerate(sequences):
            if sequence.request.params.has_penalties:
                history[row, len(sequence.tokens) - 1] = sequence.tokens[-1]
        return history

    def _ban_ends(self, sequences: list[Sequence], given: dict[str, Any]) -> None:
        """Make every end of a sequence impossible before its minimum length."""
        young = [s.new_tokens < s.request.params.min_tokens for s in sequences]
        self._watch_minimum = any(young)
        ends = [
            list(s.request.eos_ids | s.request.stop_ids) if y else [] for s, y in zip(sequences, young, strict=True)
        ]
        if any(ends):
            given["banned_ids"] = self._tensor(_padded(ends))

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


def _bias(sequences: list[Sequence]) -> dict[str, Array]:
    biases = [s.request.params.logit_bias or {} for s in sequences]
    values = np.zeros((len(biases), max(len(bias) for bias in biases)), np.float32)
    for row, bias in enumerate(biases):
        values[row, : len(bias)] = list(bias.values())
    return {"bias_ids": _padded([list(bias) for bias in biases]), "bias_values": values}


def _padded(rows: list[list[int]]) -> Array:
    """[n, longest] with -1 behind each row."""
    found = np.full((len(rows), max(len(row) for row in rows)), -1, np.int64)
    for index, row in enumerate(rows):
        found[index, : len(row)] = row
    return found
