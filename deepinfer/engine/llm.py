"""`LLM`: the public face of the engine.

Thread-safe: any thread may call any method; steps are serialised by one lock, and a step serves everything that is
queued, whoever queued it.
"""

from __future__ import annotations

import os
import threading
import types
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from deepinfer.engine.arguments import conversations, per_prompt, prompt_list
from deepinfer.engine.build import build_engine
from deepinfer.engine.chat import template_variables
from deepinfer.engine.config import make_config
from deepinfer.engine.graphs import GraphReport
from deepinfer.engine.outputs import RequestOutput, StreamOutput
from deepinfer.engine.params import SamplingParams
from deepinfer.engine.progress import GenerateProgress
from deepinfer.engine.request import PromptScores, Request, Status
from deepinfer.engine.tokenizer import Tokenizer
from deepinfer.engine.validate import boolean
from deepinfer.errors import DeepInferError, InvalidArgument, invalid
from deepinfer.hal import Device
from deepinfer.models import Progress

Prompt = str | Items[int]
Conversation = Items[Mapping[str, Any]]


class LLM:
    """An offline inference engine over one checkpoint.

    >>> llm = LLM("examples/models/tiny-v3")                                            # doctest: +SKIP
    >>> llm.generate(["def main("], SamplingParams(max_tokens=8))[0].outputs[0].text    # doctest: +SKIP

    Args:
        model: directory with config.json, safetensors files and (for text) tokenizer.json.
        device: a backend specification ("cpu", "cuda:1", ...), an opened device, or None for the current device.
        dtype: "auto", "float32" or "bfloat16".
        progress: called with (layers loaded, layers in all) while the checkpoint is read.
        options: the fields of `EngineConfig`.

    Raises:
        CheckpointError: the checkpoint is damaged or of an unknown class; names file and tensor or field.
        InvalidArgument: an option is wrong, or the cache cannot hold one sequence of the wanted length.
        BackendUnavailable: the device cannot be used.
    """

    def __init__(
        self,
        model: str | Path,
        device: str | Device | None = None,
        dtype: str = "auto",
        *,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(model, str | Path):
            raise invalid("model", model, "must be a directory")
        if progress is not None and not callable(progress):
            raise invalid("progress", progress, "must be a function of (layers loaded, layers in all) or None")
        self.config = make_config({"dtype": dtype, **options})
        self._parts = build_engine(Path(model), device, self.config, progress)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._closed = False

    # -- what the engine is ------------------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device the model runs on."""
        return self._parts.core.device

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output in tokens."""
        return self._parts.core.max_len

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._parts.core.model.config.vocab_size

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The checkpoint's tokenizer, None when it has none."""
        return self._parts.core.tokenizer

    def statistics(self) -> dict[str, float]:
        """Counters since the engine was opened: steps, blocks, and the prefix cache's hits in tokens."""
        core = self._parts.core
        index = core.index
        hit, asked = (index.hit_tokens, index.asked_tokens) if index else (0, 0)
        return {
            "steps": core.steps,
            "blocks": core.pool.count,
            "free_blocks": core.pool.free,
            "prefix_hit_tokens": hit,
            "prefix_asked_tokens": asked,
            "prefix_hit_rate": hit / asked if asked else 0.0,
            "graph_steps": core.graphs.report.replayed,
        }

    def decode_graphs(self) -> GraphReport:
        """Which decode steps run as captured graphs, and why others do not; `str()` gives the printable form."""
        with self._lock:
            report = self._parts.core.graphs.report
            return replace(report, eager=report.eager.copy())

    # -- generation --------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Items[Prompt],
        sampling_params: SamplingParams | Items[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        priority: int | Items[int] = 0,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Continue every prompt.

        Args:
            prompts: a text, a list of token ids, or a list of such.
            sampling_params: one for all prompts, or one per prompt; default `SamplingParams()`.
            use_tqdm: show progress on the terminal.
            priority: smaller numbers are served first; one for all or one per prompt.
            cache_salt: requests share cached prefixes only with requests of the same salt.

        Returns:
            One `RequestOutput` per prompt in order. A request that fails carries `error` and finish reason "error";
            the others are not affected.

        Raises:
            InvalidArgument: the arguments have the wrong type or their lists differ in length; nothing was started.
        """
        boolean("use_tqdm", use_tqdm)
        requests = self._submit(prompt_list(prompts), sampling_params, priority=priority, salt=cache_salt)
        return self._drive(requests, use_tqdm)

    def chat(
        self,
        messages: Conversation | Items[Conversation],
        sampling_params: SamplingParams | Items[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Continue conversations, each a list of {"role": ..., "content": ...}, through the checkpoint's chat template.

        Raises:
            InvalidArgument: the checkpoint has no chat template or no tokenizer; otherwise as `generate`. A
                conversation that its template refuses fails alone.
        """
        prompts = self._render(conversations(messages), add_generation_prompt, chat_template_kwargs)
        boolean("use_tqdm", use_tqdm)
        requests = self._submit(prompts, sampling_params, special=False, salt=cache_salt)
        return self._drive(requests, use_tqdm)

    def generate_stream(
        self,
        prompts: Prompt | Items[Prompt],
        sampling_params: SamplingParams | Items[SamplingParams] | None = None,
        *,
        priority: int | Items[int] = 0,
        cache_salt: str | None = None,
    ) -> Iterator[StreamOutput]:
        """Like `generate`, as an iterator of increments. Closing the iterator aborts what is left."""
        given = prompt_list(prompts)
        return self._stream(self._submit(given, sampling_params, streaming=True, priority=priority, salt=cache_salt))

    def chat_stream(
        self,
        messages: Conversation | Items[Conversation],
        sampling_params: SamplingParams | Items[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
    ) -> Iterator[StreamOutput]:
        """Like `chat`, as an iterator of increments. Closing the iterator aborts what is left."""
        prompts = self._render(conversations(messages), add_generation_prompt, chat_template_kwargs)
        return self._stream(self._submit(prompts, sampling_params, special=False, streaming=True, salt=cache_salt))

    def score(self, prompts: Prompt | Items[Prompt], full_vocab: bool = False) -> list[torch.Tensor]:
        """Log-probabilities of given tokens, without generating.

        Returns:
            Per prompt of n tokens a float32 tensor on the host: [n], element i = log p(token i | tokens before it), the
            first NaN because it has no context; or with `full_vocab` [n, vocab], row i = the distribution of the token
            that follows tokens 0..i.

        Raises:
            DeepInferError: a prompt cannot be scored; the message names its index.
        """
        given = prompt_list(prompts)
        params = SamplingParams(max_tokens=0)
        scores = [PromptScores(tables=[] if boolean("full_vocab", full_vocab) else None) for _ in given]
        requests = self._submit(given, params, scores=scores)
        for index, output in enumerate(self._drive(requests, False)):
            if output.error is not None:
                raise InvalidArgument(f"prompts[{index}]: {output.error}") from output.error
        return [_score_tensor(entry) for entry in scores]

    # -- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back the cache and the weights. Idempotent; later calls raise InvalidArgument."""
        if os.getpid() != self._process:  # the parent's: nothing here is the child's to give back
            return
        with self._lock:
            self._check_outside()
            self._closed = True
            self._parts.release()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _submit(
        self,
        prompts: list[Any],
        params: Any,
        *,
        priority: int | Items[int] = 0,
        scores: list[PromptScores] | None = None,
        salt: str | None = None,
        **options: Any,
    ) -> list[Request]:
        params_list = per_prompt(
            "sampling_params", SamplingParams() if params is None else params, len(prompts), SamplingParams
        )
        priorities = per_prompt("priority", priority, len(prompts), int)
        if salt is not None and not isinstance(salt, str):
            raise invalid("cache_salt", salt, "must be a text or None")
        self._check_process()
        with self._lock:
            self._check_outside()
            if self._closed:
                raise InvalidArgument("LLM: is closed; open a new one")
            requests: list[Request] = []
            try:
                for index, prompt in enumerate(prompts):
                    entry = scores[index] if scores else None
                    request, error = self._parts.intake.make(
                        prompt, params_list[index], priority=priorities[index], salt=salt, scores=entry, **options
                    )
                    requests.append(request)
                    if error is not None:
                        self._parts.core.fail(request, error)
                    else:
                        self._parts.core.add(request)
            except BaseException:  # an interrupt: nobody will ask for what was queued so far
                self._abort(requests)
                raise
            return requests

    def _drive(self, requests: list[Request], show: bool) -> list[RequestOutput]:
        try:
            with GenerateProgress(len(requests), show) as progress:
                waiting = [request for request in requests if not request.finished]
                while waiting:
                    self._step(waiting)
                    waiting = [request for request in waiting if not request.finished]
                    progress.update(len(requests) - len(waiting))
        finally:
            self._abort(requests)
        return [request.output for request in requests]

    def _step(self, waiting: list[Request]) -> None:
        """One step for everybody, on behalf of `waiting`."""
        self._check_process()
        with self._lock:
            self._check_outside()
            if self._closed:
                raise InvalidArgument("LLM: was closed while requests were running")
            if not self._parts.core.step():  # nothing is queued: whoever still waits would wait for ever
                for request in waiting:
                    if not request.finished:
                        self._parts.core.fail(request, DeepInferError("internal: the request was lost"))

    def _check_process(self) -> None:
        """A forked child has neither the threads that compute nor, perhaps, the holder of the lock: it would hang."""
        if os.getpid() != self._process:
            raise InvalidArgument(
                "LLM: was opened before this process was forked; open it in the child, started with "
                "multiprocessing's 'spawn' method"
            )

    def _check_outside(self) -> None:
        """The lock lets its own thread in again; a finalizer or signal handler must not run the engine in a step."""
        if self._parts.core.stepping:
            raise InvalidArgument("LLM: was called from inside one of its own steps (by a signal handler?)")

    def _stream(self, requests: list[Request]) -> Iterator[StreamOutput]:
        """The increments of `requests`. Started here, so that an iterator dropped unused aborts them too."""
        stream = self._increments(requests)
        next(stream)
        return cast("Iterator[StreamOutput]", stream)

    def _increments(self, requests: list[Request]) -> Iterator[StreamOutput | None]:
        sent = [[0] * len(request.sequences) for request in requests]
        waiting = list(range(len(requests)))
        try:
            yield None
            while waiting:
                running = [requests[i] for i in waiting if not requests[i].finished]
                if running:
                    self._step(running)
                for i in waiting:
                    yield from _increments(i, requests[i], sent[i])
                waiting = [i for i in waiting if any(count >= 0 for count in sent[i])]
        finally:
            self._abort(requests)

    def _abort(self, requests: list[Request]) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            for request in requests:
                self._parts.core.abort(request)

    def _render(self, dialogs: list[Any], add_generation_prompt: bool, names: Mapping[str, Any] | None) -> list[Any]:
        template, variables = self._parts.template, template_variables(names)
        boolean("add_generation_prompt", add_generation_prompt)
        if template is None:
            raise InvalidArgument(
                "chat: this checkpoint has no chat template (chat_template in tokenizer_config.json, or "
                "chat_template.jinja); use generate() with a complete prompt"
            )
        prompts: list[Any] = []
        for messages in dialogs:
            try:
                prompts.append(template.render(messages, add_generation_prompt, variables))
            except DeepInferError as error:
                prompts.append(error)
        return prompts


def _increments(index: int, request: Request, sent: list[int]) -> Iterator[StreamOutput]:
    """What is new of each sample; `sent` counts delivered tokens, -1 after a sample's last increment."""
    for sequence in request.sequences:
        completion = sequence.completion
        start = sent[completion.index]
        final = sequence.status is Status.FINISHED
        if start < 0 or (len(completion.token_ids) == start and not final):
            continue
        tokens = completion.token_ids[start:]
        sent[completion.index] = -1 if final else len(completion.token_ids)
        text = "" if sequence.text is None else sequence.text.take(final)
        yield StreamOutput(
            index,
            completion.index,
            text,
            tokens,
            completion.finish_reason,
            completion.stop_reason,
            request.output.error if final else None,
        )


def _score_tensor(scores: PromptScores) -> torch.Tensor:
    if scores.tables is not None:
        return torch.cat(scores.tables).clone()
    return torch.cat([torch.full((1,), float("nan")), *scores.tokens])
