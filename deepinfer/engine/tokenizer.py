"""The checkpoint's tokenizer (tokenizer.json through the `tokenizers` library), and its special tokens.

A directory without tokenizer.json gives no tokenizer: such a model works with token ids only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepinfer.errors import CheckpointError, invalid
from deepinfer.models.fields import Fields, is_file, read_json

FILE = "tokenizer.json"


class Tokenizer:
    """Text to ids and back. `config` is tokenizer_config.json (empty when absent)."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer as Backend  # a compiled extension: loaded only when a text model is opened

        path = directory / FILE
        try:
            self._backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for any malformed file
            raise CheckpointError(f"{path}: is not a tokenizer file: {error}") from error
        self.config = tokenizer_config(directory)
        self.bos_token, self.eos_token = (special_text(self.config, name) for name in ("bos_token", "eos_token"))
        self._bos_id = self.token_id(self.bos_token) if self.config.get("add_bos_token") is True else None

    @property
    def vocab_size(self) -> int:
        """Number of ids the tokenizer knows, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def token_id(self, text: str | None) -> int | None:
        """Id of the token with exactly this text, None when there is none."""
        found: int | None = None if text is None else self._backend.token_to_id(text)
        return found

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of `text`; with `special` also what the model expects around a prompt."""
        if not isinstance(text, str):
            raise invalid("text", text, "must be a string")
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise invalid("text", text, f"must be valid Unicode: {error}") from error
        except Exception as error:  # the library raises bare Exception where a damaged vocabulary lacks a piece
            raise invalid("text", text, f"the tokenizer cannot encode it: {error}") from error
        if special and self._bos_id is not None and ids[:1] != [self._bos_id]:
            return [self._bos_id, *ids]
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `ids`; ids outside the vocabulary have no text."""
        return str(self._backend.decode(ids, skip_special_tokens=skip_special))


def open_tokenizer(directory: Path, asked_for: bool = False) -> Tokenizer | None:
    """The tokenizer in `directory`; without tokenizer.json None, or an error where the caller named the directory."""
    found = is_file(directory / FILE)
    if asked_for and not found:
        raise invalid("tokenizer", str(directory), f"must be a directory with a {FILE}; leave it out to work with ids")
    return Tokenizer(directory) if found else None


def tokenizer_config(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json, empty when there is none."""
    path = directory / "tokenizer_config.json"
    return read_json(path) if is_file(path) else {}


def encodable(text: str) -> bool:
    """Whether `text` is Unicode: JSON and Python let halves of a character stand alone."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def special_text(config: dict[str, Any], name: str) -> str | None:
    """A special token's text, which is stored plainly or as an object with `content`."""
    value = config.get(name)
    value = value.get("content") if isinstance(value, dict) else value
    if value is not None and not (isinstance(value, str) and encodable(value)):
        raise Fields(config, "tokenizer_config.json").error(name, "must be a text or an object with a text `content`")
    return value
