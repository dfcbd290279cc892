"""What callers of `LLM` may pass for lists: one or many prompts, conversations, parameters; always one list inside."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

from deepinfer.engine.chat import check_messages
from deepinfer.errors import invalid


def prompt_list(prompts: Any) -> list[Any]:
    """A list of prompts from one text, one list of token ids, or a list of such."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | bytearray | memoryview) or not isinstance(prompts, Items):
        raise invalid("prompts", prompts, "must be a text, a list of token ids, or a list of such")
    if prompts and all(isinstance(entry, int) and not isinstance(entry, bool) for entry in prompts):
        return [prompts]
    return list(prompts)


def conversations(messages: Any) -> list[Any]:
    """A list of conversations from one or many."""
    if not isinstance(messages, Items) or isinstance(messages, str | bytes) or not messages:
        check_messages(messages)
    return [messages] if isinstance(messages[0], Mapping) else list(messages)


def per_prompt(name: str, value: Any, count: int, kind: type) -> list[Any]:
    """`count` values of type `kind` from one for all, or from a list of that length."""
    if isinstance(value, kind) and not isinstance(value, bool):
        return [value] * count
    if not isinstance(value, Items) or isinstance(value, str | bytes):
        raise invalid(name, value, f"must be {kind.__name__} or a list of them")
    if len(value) != count:
        raise invalid(f"len({name})", len(value), "must equal the number of prompts", nearest=count)
    for index, entry in enumerate(value):
        if not isinstance(entry, kind) or isinstance(entry, bool):
            raise invalid(f"{name}[{index}]", entry, f"must be {kind.__name__}")
    return list(value)
