"""`deepinfer generate MODEL PROMPT...`: text from prompts, on the chosen or detected device."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deepinfer
from deepinfer.cli.output import print_json

if TYPE_CHECKING:
    from deepinfer.engine import LLM, SamplingParams


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that `generate` and `chat` share."""
    parser.add_argument("model", type=Path, help="Hugging Face model directory")
    parser.add_argument("--backend", help="device specification (default: the automatic choice)")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16 (default: the checkpoint's)")
    parser.add_argument("--max-tokens", type=int, default=128, help="new tokens per answer (default 128)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 = always the most likely token (default)")
    parser.add_argument("--top-p", type=float, default=1.0, help="keep the smallest set with this much mass")
    parser.add_argument("--top-k", type=int, default=-1, help="keep this many tokens; -1 = all")
    parser.add_argument("--seed", type=int, help="makes sampling repeatable")
    parser.add_argument("--stop", action="append", help="stop at this text (repeatable)")


def open_model(options: argparse.Namespace) -> LLM:
    """Announce the device and load the model."""
    device = deepinfer.device(options.backend)
    print(f"device: {device!r}", file=sys.stderr)
    return deepinfer.LLM(str(options.model), device=device.spec, dtype=options.dtype)


def sampling(options: argparse.Namespace) -> SamplingParams:
    """Sampling parameters from the command line."""
    return deepinfer.SamplingParams(
        temperature=options.temperature, top_p=options.top_p, top_k=options.top_k, max_tokens=options.max_tokens,
        seed=options.seed, stop=options.stop,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("prompt", nargs="*", help="prompts; without any, one is read from standard input")
    parser.add_argument("--json", action="store_true", help="print results as JSON")


def to_plain(result: Any) -> Any:
    """A RequestOutput as JSON-able data."""
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else result


def run(options: argparse.Namespace) -> int:
    prompts = options.prompt or [sys.stdin.read()]
    with open_model(options) as llm:
        if options.json:
            results = llm.generate(prompts, sampling(options), use_tqdm=False)
            print_json([to_plain(result) for result in results])
            return int(any(result.error for result in results))
        if len(prompts) == 1:
            return _stream(llm, prompts[0], options)
        results = llm.generate(prompts, sampling(options))
        for prompt, result in zip(prompts, results, strict=True):
            print(f"--- {prompt!r}\n{result.error or result.outputs[0].text}")
        return int(any(result.error for result in results))


def _stream(llm: LLM, prompt: str, options: argparse.Namespace) -> int:
    increments = llm.generate_stream(prompt, sampling(options))
    print(prompt, end="", flush=True)
    failed = False
    for increment in increments:
        if increment.error:
            print(f"\ndeepinfer: {increment.error}", file=sys.stderr)
            failed = True
        print(increment.text, end="", flush=True)
    print()
    return int(failed)
