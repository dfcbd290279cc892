"""What requests give back. One `RequestOutput` per prompt, in the order of the prompts, whatever happened to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from deepinfer.errors import DeepInferError

TokenLogprobs = dict[int, "Logprob"]


@dataclass(frozen=True)
class Logprob:
    """Natural log of a token's probability under the model's own distribution; `rank` 1 is the most likely token."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One sample.

    Attributes:
        index: 0 <= index < n.
        text: the decoded output ("" without a tokenizer).
        token_ids: the new tokens, a final end-of-sequence or stop token included.
        finish_reason: "stop", "length", "abort" or "error"; None while running.
        stop_reason: the stop string or stop token id that matched; None for end-of-sequence.
        cumulative_logprob: sum of the chosen tokens' log-probabilities, None unless logprobs were asked for.
        logprobs: per new token a mapping from token id to `Logprob`, None unless asked for.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None


@dataclass
class RequestMetrics:
    """Times in seconds (monotonic clock) and counts of one request.

    Attributes:
        arrival_time, first_scheduled_time, first_token_time, finished_time: None until they happen.
        cached_tokens: prompt tokens whose cache rows were reused at the first admission.
        preemptions: how often a sample was put back and recomputed.
        accepted_drafts: tokens accepted from speculation (0: this version does not speculate).
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    accepted_drafts: int = 0


@dataclass
class RequestOutput:
    """The result of one prompt.

    Attributes:
        request_id: unique within the engine.
        prompt: the prompt's text, None when it came as token ids.
        prompt_token_ids: its tokens (empty when it could not be tokenised).
        outputs: the `n` samples.
        prompt_logprobs: per prompt token a mapping (None for the first), None unless asked for.
        error: why the request failed; None when it did not.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: DeepInferError | None = None

    @property
    def finished(self) -> bool:
        """Whether every sample has its finish reason."""
        return all(output.finish_reason is not None for output in self.outputs)


@dataclass(frozen=True)
class StreamOutput:
    """An increment of one sample of one prompt.

    Attributes:
        prompt_index: position of the prompt in the call's list.
        index: the sample, 0 <= index < n.
        text: new text; never half a character, never a part of a stop string that is cut.
        token_ids: new tokens since the last increment.
        finish_reason, stop_reason, error: set in the last increment of the sample.
    """

    prompt_index: int
    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: DeepInferError | None = None
