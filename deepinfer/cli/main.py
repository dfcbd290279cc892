"""Parses `deepinfer COMMAND ...` and runs it. Errors of library and system become one message and exit status 2.

Invariant: a command module is imported only when it is chosen, so `deepinfer --help` stays instant.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

COMMANDS = {
    "doctor": "check every backend, driver and device, with reasons and a smoke test",
    "backends": "list known and installed backends and their devices",
    "explain": "show which kernel an op would run, and why not the others",
    "conformance": "prove a backend against the op specifications",
    "bench": "run microbenchmarks, compare runs, draw a picture",
    "generate": "generate text from prompts with a model directory",
    "chat": "talk to a model that has a chat template",
}


def build_parser() -> argparse.ArgumentParser:
    """The top parser; each subcommand adds its own arguments on demand."""
    from deepinfer import __version__

    parser = argparse.ArgumentParser(
        prog="deepinfer",
        description="Kernels on pluggable backends and an offline inference engine.",
        epilog="`deepinfer COMMAND --help` describes one command.",
    )
    parser.add_argument("--version", action="version", version=f"deepinfer {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def _open_closed_streams() -> None:
    """A standard stream that the caller closed becomes the null device.

    Python leaves it None, and `print(..., file=None)` would put what is meant for standard error among the results;
    and the first file that is opened would get the closed one's number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # lives as long as the process


def _parse(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """Options may stand before, between and behind prompts."""
    try:
        return parser.parse_intermixed_args(arguments)
    except TypeError:  # argparse's word for a command that has commands of its own
        return parser.parse_args(arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit status (0 fine, 1 a check failed, 2 an error)."""
    _open_closed_streams()
    try:
        return _main(argv)
    except KeyboardInterrupt:  # at any moment, also while the libraries are imported
        print("deepinfer: interrupted", file=sys.stderr)
        return 130


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    known, rest = build_parser().parse_known_args(arguments[:1]), arguments[1:]
    module = import_module(f"deepinfer.cli.{known[0].command}")
    parser = argparse.ArgumentParser(prog=f"deepinfer {known[0].command}", description=COMMANDS[known[0].command])
    module.add_arguments(parser)
    options = _parse(parser, rest)
    return _run(module, options)


def _run(module: ModuleType, options: argparse.Namespace) -> int:
    from deepinfer.cli.output import forget_output, tolerant_streams
    from deepinfer.errors import DeepInferError

    tolerant_streams()
    try:
        status: int = module.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, `deepinfer explain | head -1`
        forget_output()
        return 141
    except (DeepInferError, OSError) as error:
        return _failed(error, getattr(options, "json", False))
    return status


def _failed(error: Exception, as_json: bool) -> int:
    """One message on standard error; with --json also {"error": {"type", "message"}} on standard output."""
    from deepinfer.cli.output import forget_output, print_json

    kind, message = type(error).__name__, str(error)
    print(f"deepinfer: {kind}: {message}", file=sys.stderr)
    try:
        if as_json:
            print_json({"error": {"type": kind, "message": message}})
            sys.stdout.flush()
    except OSError:  # a full or closed output is perhaps the very error
        forget_output()
    return 2


if __name__ == "__main__":
    sys.exit(main())
