"""Chat templates: Jinja programs from the checkpoint, rendered in an immutable sandbox because they are code.

A template may come from tokenizer_config.json (one text or a list of named ones) or from chat_template.jinja.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from deepinfer.engine.tokenizer import special_text
from deepinfer.errors import CheckpointError, DeepInferError, InvalidArgument, invalid
from deepinfer.models.fields import is_file, read_text

FILE = "chat_template.jinja"
SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """A compiled template together with the special tokens it may mention."""

    def __init__(self, source: str, specials: Mapping[str, str], where: str) -> None:
        from jinja2 import TemplateSyntaxError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        from deepinfer.engine.chat_tags import Generation

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise, strftime_now=lambda form: datetime.now().strftime(form))
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise CheckpointError(f"{where}: chat template: line {error.lineno}: {error.message}") from error
        except Exception as error:  # foreign code: nested too deep, numbers too long, ...
            raise CheckpointError(f"{where}: chat template: cannot be compiled: {error}") from error
        self._specials, self._where = dict(specials), where
        self._reads_parts = re.search(r"""\[['"]type['"]\]|\.type\b|get\(['"]type['"]""", source) is not None

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text for one conversation; `variables` are further names that the template may use.

        Raises:
            InvalidArgument: the messages are malformed, or the template refuses them.
        """
        check_messages(messages)
        if not self._reads_parts:  # such a template would print the list itself
            messages = [_joined(index, message) for index, message in enumerate(messages)]
        names = {**self._specials, **(variables or {})}
        try:
            return self._template.render(names | {"messages": messages, "add_generation_prompt": add_generation_prompt})
        except DeepInferError:
            raise
        except Exception as error:  # a template is foreign code: whatever it raises is its verdict on the messages
            raise InvalidArgument(f"messages: the chat template of {self._where} fails on them: {error}") from error


def load_template(directory: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """The checkpoint's template, None when it has none; `config` is tokenizer_config.json."""
    path = directory / FILE
    source: Any = config.get("chat_template")
    where = str(directory / "tokenizer_config.json")
    if is_file(path):
        source, where = read_text(path), str(path)
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    if source is None:
        return None
    if not isinstance(source, str):
        raise CheckpointError(f"{where}: chat_template: must be a text or a list with one named 'default'")
    specials = {name: text for name in SPECIALS if (text := special_text(dict(config), name)) is not None}
    return ChatTemplate(source, specials, where)


def template_variables(names: object) -> dict[str, Any]:
    """`chat_template_kwargs`: further names for the template, None = none."""
    if names is None:
        return {}
    if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names):
        raise invalid("chat_template_kwargs", names, "must be a mapping from names to values")
    taken = [name for name in ("messages", "add_generation_prompt") if name in names]
    if taken:
        raise invalid("chat_template_kwargs", taken, "must not name what the call itself passes to the template")
    return dict(names)


def check_messages(messages: object) -> None:
    """One conversation: a non-empty sequence of objects with a text `role`."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise invalid("messages", messages, "must be a non-empty list of objects with `role` and `content`")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise invalid(f"messages[{index}]", message, "must be an object with a text `role` and a `content`")


def _joined(index: int, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with `content` as one text where it came as a list of {"type": "text", "text": ...} parts."""
    parts = message.get("content")
    if not isinstance(parts, Sequence) or isinstance(parts, str | bytes):
        return message
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            rule = "every part must be {'type': 'text', 'text': ...}; this chat template takes nothing else"
            raise invalid(f"messages[{index}]['content']", part, rule)
    return {**message, "content": "\n".join(part["text"] for part in parts)}


def _raise(message: str) -> None:
    raise InvalidArgument(f"messages: the chat template refuses them: {message}")


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
