"""From a user's prompt and parameters to a `Request`; what cannot be served becomes an error of that request alone."""

from __future__ import annotations

import numbers
import random
import time
from collections.abc import Sequence as Items
from typing import Any

from deepinfer.engine.detokenize import TextStream
from deepinfer.engine.outputs import RequestMetrics, RequestOutput
from deepinfer.engine.params import ALL, SamplingParams
from deepinfer.engine.prefix import root_key
from deepinfer.engine.request import PromptScores, Request, Sequence
from deepinfer.engine.tokenizer import Tokenizer
from deepinfer.errors import DeepInferError, InvalidArgument, UnsupportedError, invalid

MASK64 = (1 << 64) - 1


class Intake:
    """Builds requests for one engine.

    Args:
        eos_ids: the model's end-of-sequence tokens.
        max_len: longest sequence in tokens.
        seed: seed of the generator that gives seeds to requests without one; None = fresh.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, vocab: int, eos_ids: frozenset[int], max_len: int, seed: int | None
    ) -> None:
        self.tokenizer, self.vocab, self.eos_ids, self.max_len = tokenizer, vocab, eos_ids, max_len
        self._random = random.Random(seed)
        self._order = 0

    def make(
        self,
        prompt: Any,
        params: SamplingParams,
        *,
        streaming: bool = False,
        priority: int = 0,
        special: bool = True,
        salt: str | None = None,
        scores: PromptScores | None = None,
    ) -> tuple[Request, DeepInferError | None]:
        """A request, and why it cannot run (it then holds no prompt)."""
        self._order += 1
        error: DeepInferError | None = None
        ids: list[int] = []
        try:
            ids = self._tokens(prompt, special)
            self._check_prompt(ids, params, scores)
            self._check_params(params)
        except DeepInferError as problem:
            error = problem
        text = prompt if isinstance(prompt, str) else None
        output = RequestOutput(self._order, text, ids, [], RequestMetrics(time.monotonic()))
        eos = frozenset[int]() if params.ignore_eos else self.eos_ids
        seed = self._random.getrandbits(63) if params.seed is None else params.seed
        limit = self.max_len if params.max_tokens is None else min(len(ids) + params.max_tokens, self.max_len)
        request = Request(
            self._order,
            ids,
            params,
            output,
            eos,
            frozenset(params.stop_token_ids or ()),
            seed,
            limit,
            priority,
            root_key({"salt": salt}),
            scores,
        )
        for index in range(params.n):
            request.sequences.append(Sequence(request, index, self._stream(params, streaming and error is None)))
        output.outputs = [sequence.completion for sequence in request.sequences]
        return request, error

    def _stream(self, params: SamplingParams, streaming: bool) -> TextStream | None:
        wanted = params.detokenize and (streaming or bool(params.stop_texts))
        if self.tokenizer is None or not wanted:
            return None
        keep = params.include_stop_str_in_output
        return TextStream(self.tokenizer, params.skip_special_tokens, params.stop_texts, keep)

    def _tokens(self, prompt: Any, special: bool) -> list[int]:
        if isinstance(prompt, DeepInferError):
            raise prompt
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InvalidArgument("prompt: got text, but this checkpoint has no tokenizer.json; pass token ids")
            return self.tokenizer.encode(prompt, special)
        listed = isinstance(prompt, Items) or hasattr(prompt, "tolist")
        if not listed or isinstance(prompt, bytes | bytearray | memoryview):
            raise invalid("prompt", prompt, "must be a text or a list of token ids")
        values = prompt.tolist() if hasattr(prompt, "tolist") else prompt
        if not isinstance(values, Items):
            raise invalid("prompt", prompt, "must be a text or a list of token ids")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise invalid("prompt", value, "every token id must be an integer")
        return [int(value) for value in values]

    def _check_prompt(self, ids: list[int], params: SamplingParams, scores: PromptScores | None) -> None:
        if not ids:
            raise InvalidArgument("prompt: is empty, must hold at least one token")
        low, high = min(ids), max(ids)
        if low < 0 or high >= self.vocab:
            raise invalid("prompt", low if low < 0 else high, f"token ids must be in [0, {self.vocab - 1}]")
        room = self.max_len - (1 if params.max_tokens != 0 else 0)
        if len(ids) > room:
            raise InvalidArgument(
                f"prompt: has {len(ids)} tokens, at most {room} leave room for the output "
                f"(max_model_len is {self.max_len})"
            )

    def _check_params(self, params: SamplingParams) -> None:
        if params.structured_outputs is not None:
            raise UnsupportedError("structured_outputs: constrained decoding is not available in this version")
        for token in params.logit_bias or ():
            if not 0 <= token < self.vocab:
                raise invalid("logit_bias", token, f"token ids must be in [0, {self.vocab - 1}]")
        for token in params.stop_token_ids or ():
            if not 0 <= token < self.vocab:
                raise invalid("stop_token_ids", token, f"must be in [0, {self.vocab - 1}]")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(params, name)
            if value is not None and value != ALL and value > self.vocab:
                raise invalid(name, value, f"must be at most the vocabulary size {self.vocab}", nearest=self.vocab)
        if params.stop_texts and self.tokenizer is None:
            raise InvalidArgument("stop: stop strings need a tokenizer, this checkpoint has none; use stop_token_ids")
