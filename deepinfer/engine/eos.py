"""End-of-sequence tokens from every file of a checkpoint that may name them, merged.

Sources: generation_config.json and config.json (`eos_token_id`, a number or a list), and `eos_token` of
tokenizer_config.json. A model whose end token stands in only one of them must still stop.
"""

from __future__ import annotations

from pathlib import Path

from deepinfer.config import logger
from deepinfer.engine.tokenizer import Tokenizer, special_text, tokenizer_config
from deepinfer.models.config import ModelConfig, parse_token_ids
from deepinfer.models.fields import Fields, is_file, read_json

MAX_DIGITS = 18  # of a token id; longer texts of digits are no id of any vocabulary


def end_tokens(directory: Path, config: ModelConfig, tokenizer: Tokenizer | None) -> frozenset[int]:
    """All end-of-sequence ids below the vocabulary size; one that is not is reported and left out."""
    found = set(config.eos_token_ids)
    path = directory / "generation_config.json"
    if is_file(path):
        found.update(parse_token_ids(Fields(read_json(path), str(path)), "eos_token_id"))
    named = _named_end(directory, tokenizer)
    if named is not None:
        found.add(named)
    outside = {token for token in found if token >= config.vocab_size}
    if outside:
        logger.warning(
            "%s: end-of-sequence ids %s lie outside the vocabulary of %d and are ignored",
            directory,
            sorted(outside),
            config.vocab_size,
        )
    return frozenset(found - outside)


def _named_end(directory: Path, tokenizer: Tokenizer | None) -> int | None:
    if tokenizer is not None:
        return tokenizer.token_id(tokenizer.eos_token)
    config = tokenizer_config(directory)
    text = special_text(config, "eos_token")
    added = config.get("added_tokens_decoder")
    if text is None or not isinstance(added, dict):
        return None
    ids = [key for key, value in added.items() if isinstance(value, dict) and value.get("content") == text]
    if not ids or not (ids[0].isascii() and ids[0].isdigit()) or len(ids[0]) > MAX_DIGITS:
        return None
    return int(ids[0])
