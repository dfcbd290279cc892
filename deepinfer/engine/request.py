"""Requests as the engine sees them: a `Request` is one prompt, a `Sequence` one of its samples.

Invariants: a sequence holds cache blocks and a batch row only while it runs; `computed` counts tokens whose cache rows
are written, and only settled steps raise it; `tokens` never contains a placeholder.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import torch

from deepinfer.engine.detokenize import TextStream
from deepinfer.engine.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from deepinfer.engine.params import SamplingParams
from deepinfer.engine.prefix import Entry


@dataclass
class PromptScores:
    """What `LLM.score` collects of one prompt.

    Attributes:
        tokens: log-probabilities of the prompt tokens but the first, in pieces.
        tables: [n, vocab] pieces when whole tables are wanted.
    """

    tokens: list[torch.Tensor] = field(default_factory=list)
    tables: list[torch.Tensor] | None = None


class Status(enum.Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """One prompt with its parameters and everything derived from them once.

    Attributes:
        order: arrival number, unique and growing; smaller `priority` goes first, then smaller `order`.
        eos_ids: tokens that end the output as end-of-sequence (empty with ignore_eos).
        stop_ids: other tokens that end it.
        seed: what the sampler's counter-based generator is keyed with.
        root: name space of the prefix cache.
        scores: collects log-probabilities of the prompt for `LLM.score`, None otherwise.
        prompt_rows: prompt positions whose next-token distribution was recorded (prompt_logprobs, score).
    """

    order: int
    prompt_ids: list[int]
    params: SamplingParams
    output: RequestOutput
    eos_ids: frozenset[int]
    stop_ids: frozenset[int]
    seed: int
    limit: int
    priority: int = 0
    root: bytes = b""
    scores: PromptScores | None = None
    prompt_rows: int = 0
    sequences: list[Sequence] = field(default_factory=list)

    @property
    def needs_prompt_logits(self) -> bool:
        """Whether logits of all prompt positions are wanted, so that no cached prefix may be skipped."""
        return self.params.prompt_logprobs is not None or self.scores is not None

    @property
    def finished(self) -> bool:
        return all(sequence.status is Status.FINISHED for sequence in self.sequences)


class Sequence:
    """One sample: its tokens, its place in the cache and what has been produced."""

    __slots__ = (
        "blocks",
        "chained",
        "completion",
        "computed",
        "entries",
        "passed_over",
        "request",
        "row",
        "status",
        "text",
        "tokens",
    )

    def __init__(self, request: Request, index: int, text: TextStream | None) -> None:
        self.request = request
        self.tokens: list[int] = list(request.prompt_ids)
        self.computed = 0
        self.blocks: list[int] = []
        self.entries: list[Entry] = []
        self.row = -1
        self.status = Status.WAITING
        self.text = text
        self.passed_over = 0
        self.chained = True
        logprobs: list[TokenLogprobs] | None = None if request.params.logprobs is None else []
        total = None if logprobs is None else 0.0
        self.completion = CompletionOutput(index, logprobs=logprobs, cumulative_logprob=total)

    @property
    def key(self) -> tuple[int, int, int]:
        """Order of service."""
        return (self.request.priority, self.request.order, self.completion.index)

    @property
    def pending(self) -> int:
        """Known tokens whose cache rows are not written yet; at least 1 while the sequence is alive."""
        return len(self.tokens) - self.computed

    @property
    def new_tokens(self) -> int:
        """Tokens produced so far."""
        return len(self.tokens) - len(self.request.prompt_ids)
