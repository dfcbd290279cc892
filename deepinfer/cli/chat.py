"""`deepinfer chat MODEL`: a conversation on the terminal, or one turn per `--message` for scripts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from deepinfer.cli.generate import add_model_arguments, open_model, sampling, to_plain
from deepinfer.cli.output import print_json

Message = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--system", help="system message")
    parser.add_argument("--message", action="append", help="user message; answers and exits (repeatable)")
    parser.add_argument("--json", action="store_true", help="print results as one JSON document at the end")


def _user_turns(options: argparse.Namespace) -> Iterator[str]:
    if options.message:
        yield from options.message
        return
    print("Empty line or end of input leaves the conversation.", file=sys.stderr)
    while (text := _line()).strip():
        yield text


def _line() -> str:
    """The next line that the user types, "" at the end. Standard output carries answers only, so no prompt goes there
    unless it is a terminal."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().removesuffix("\n")
    if not sys.stdout.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().removesuffix("\n")
    try:
        return input("> ")
    except EOFError:
        return ""


def run(options: argparse.Namespace) -> int:
    messages: list[Message] = [{"role": "system", "content": options.system}] if options.system else []
    results, failed = [], False
    with open_model(options) as llm:
        for text in _user_turns(options):
            messages.append({"role": "user", "content": text})
            (result,) = llm.chat(messages, sampling(options), use_tqdm=False)
            results.append(to_plain(result))
            if result.error:
                print(f"deepinfer: {result.error}", file=sys.stderr)
                failed = True
                break
            answer = result.outputs[0].text
            messages.append({"role": "assistant", "content": answer})
            if not options.json:
                print(answer)
    if options.json:
        print_json(results)
    return int(failed)
