"""A byte-level tokenizer: byte b is token b; four specials follow. Written as tokenizer.json for `tokenizers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tiny.config import BOS, EOS, PAD, RESERVED

SPECIALS = {BOS: "<|begin|>", EOS: "<|end|>", PAD: "<|pad|>", RESERVED: "<|reserved|>"}
# The model knows Python, not dialogue: turns are comments, as a reader of sources would expect.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}# {{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant:{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte (the GPT-2 table).

    Printable Latin-1 stands for itself; every other byte, in order, takes the next code point from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = (code for code in range(256, 512))
    return [chr(byte if byte in printable else next(shifted)) for byte in range(256)]


def build() -> Tokenizer:
    """Bytes in, bytes out; BOS is put before every text unless special tokens are switched off."""
    vocab = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    vocab |= {text: token for token, text in SPECIALS.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS.values()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    bos = SPECIALS[BOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, BOS)]
    )
    return tokenizer


def tokenizer_config(max_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[BOS],
        "eos_token": SPECIALS[EOS],
        "pad_token": SPECIALS[PAD],
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }


def write(directory: Path, max_length: int) -> None:
    """tokenizer.json and tokenizer_config.json."""
    build().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(max_length), indent=2) + "\n")
