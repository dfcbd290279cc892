"""`SamplingParams`: how one request is continued. Names and defaults are those that vLLM users know.

Invariant: an object that exists is valid in itself; what depends on a model (ids below its vocabulary, a tokenizer for
stop strings) is checked when the request arrives, and fails that request alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deepinfer.engine.validate import boolean, integer, number
from deepinfer.errors import invalid

ALL = -1
MAX_INT = 2**31 - 1


@dataclass(frozen=True)
class SamplingParams:
    """Sampling options of a request.

    Order of application: logit_bias, penalties, min_tokens, temperature, top_k, top_p, min_p, draw.

    Attributes:
        n: independent samples of the prompt; the prompt is computed once.
        temperature: 0 = exact arg-max (the lowest id among equals).
        top_p: keep the smallest set of tokens whose probability reaches this.
        top_k: keep exactly this many tokens; 0 or -1 = all; more than the vocabulary = all.
        min_p: keep tokens with at least this share of the best one's probability.
        max_tokens: most new tokens; None = up to the model's length; 0 = none (for prompt_logprobs alone).
        min_tokens: end-of-sequence and stop tokens are impossible and stop strings ignored before this many.
        ignore_eos: go on after the model's end-of-sequence token (stop_token_ids still stop).
        stop: text or texts that end the output; the text is cut before the match.
        stop_token_ids: token ids that end the output; the id stays in token_ids, its text is left out.
        include_stop_str_in_output: keep the matched stop text.
        seed: makes the request reproducible, whatever else runs; None = drawn per request.
        logprobs: k = report the k most likely tokens and the chosen one per step, log-softmax of the model's own
            logits (before bias, penalties and temperature); 0 = the chosen one only; -1 = the whole vocabulary.
        prompt_logprobs: the same for the prompt's tokens (the first has none).
        repetition_penalty: > 1 makes tokens of prompt and output less likely; 1 = off.
        presence_penalty, frequency_penalty: subtracted for tokens of the output, once or per occurrence; 0 = off.
        logit_bias: token id -> number added to its logit.
        structured_outputs: not available in this version; a request with it fails with a clear error.
        detokenize: False leaves `text` empty.
        skip_special_tokens: leave special tokens out of `text`.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    structured_outputs: Any = field(default=None, hash=False)
    detokenize: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        integer("n", self.n, 1, 16384)
        self._check_shape()
        self._check_lengths()
        self._check_penalties()
        for name in ("ignore_eos", "include_stop_str_in_output", "detokenize", "skip_special_tokens"):
            boolean(name, getattr(self, name))
        if self.seed is not None:
            integer("seed", self.seed, -(2**63), 2**63 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), ALL, MAX_INT)
        object.__setattr__(self, "stop", _texts(self.stop))
        object.__setattr__(self, "stop_token_ids", _ids(self.stop_token_ids))
        if self.stop and not self.detokenize:
            raise invalid(
                "detokenize", False, "must be True with stop strings, which are found in the text", nearest=True
            )

    def _check_shape(self) -> None:
        number("temperature", self.temperature, 0.0, math.inf)
        number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        integer("top_k", self.top_k, -1, MAX_INT)
        number("min_p", self.min_p, 0.0, 1.0)

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            integer("max_tokens", self.max_tokens, 0, MAX_INT)
        integer("min_tokens", self.min_tokens, 0, MAX_INT if self.max_tokens is None else self.max_tokens)

    def _check_penalties(self) -> None:
        number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, low_open=True)
        number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise invalid("logit_bias", self.logit_bias, "must be a mapping from token ids to numbers")
        for token, value in self.logit_bias.items():
            integer("logit_bias: token id", token, -MAX_INT - 1, 2**63 - 1)
            number(f"logit_bias[{token}]", value, -math.inf, math.inf)
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        return tuple(self.stop or ())

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty is on."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def _texts(stop: object) -> tuple[str, ...]:
    values = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(values, Sequence) or not all(isinstance(text, str) and text for text in values):
        raise invalid("stop", stop, "must be a non-empty text or a sequence of them")
    return tuple(values)


def _ids(ids: object) -> tuple[int, ...]:
    if ids is None:
        return ()
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise invalid("stop_token_ids", ids, "must be a sequence of token ids")
    return tuple(integer("stop_token_ids", token, -(2**63), 2**63 - 1) for token in ids)
