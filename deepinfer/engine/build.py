"""Opening an engine: configuration, headers, tokenizer, weights, and how large the cache may be, in that order.

Everything that can be refused is refused before the first tensor is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from deepinfer.config import logger
from deepinfer.engine.chat import ChatTemplate, load_template
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.core import EngineCore
from deepinfer.engine.eos import end_tokens
from deepinfer.engine.intake import Intake
from deepinfer.engine.tokenizer import open_tokenizer, tokenizer_config
from deepinfer.errors import InvalidArgument, invalid
from deepinfer.hal import Device, DriverKind, current_device, use_backend
from deepinfer.hal import device as open_device
from deepinfer.models import Model, ModelConfig, Progress, cache_bytes, load_config, open_weights, wanted_tensors

DTYPES = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}
OWN_MEMORY, SHARED_MEMORY = 0.9, 0.25
UNKNOWN_MEMORY = 4 << 30  # free bytes assumed where the system does not tell


@dataclass
class Parts:
    """What an `LLM` drives."""

    core: EngineCore
    intake: Intake
    template: ChatTemplate | None

    def release(self) -> None:
        """Drop the references to weights, cache and graphs; what `LLM` tells about itself stays."""
        self.core.graphs.release()
        self.core.sampler.release()
        self.core.cache = []
        self.core.model.release()


def build_engine(
    directory: Path, device: str | Device | None, config: EngineConfig, progress: Progress | None = None
) -> Parts:
    """Load the checkpoint in `directory` on `device` (None = the current one)."""
    target = current_device() if device is None else open_device(device) if isinstance(device, str) else device
    if not isinstance(target, Device):
        raise invalid("device", device, "must be a backend specification, a Device or None")
    model_config = load_config(directory)
    token_dir = directory if config.tokenizer is None else Path(config.tokenizer)
    tokenizer = open_tokenizer(token_dir, config.tokenizer is not None)
    template = None if tokenizer is None else load_template(token_dir, tokenizer.config or tokenizer_config(token_dir))
    eos = end_tokens(directory, model_config, tokenizer)
    if config.load_format == "dummy":
        _check_dummy(target, model_config)
    weights = open_weights(directory, model_config, DTYPES[config.dtype], _compute(target, config), _dummy_seed(config))
    if config.activation_dtype == "bfloat16" and weights.dtype is torch.float32:
        raise invalid("activation_dtype", "bfloat16", "this checkpoint's weights are float32", nearest="'float32'")
    with use_backend(target):
        block = cache_bytes(model_config, weights.compute, config.block_size)
        # Asked twice: what cannot fit is refused before anything is read, and loading takes memory itself.
        _, longest = _cache_size(target, block, config, _wanted_len(model_config, config))
        model = Model(target, model_config, weights, longest, progress)
        blocks, max_len = _cache_size(target, block, config, longest)
        core = EngineCore(model, config, max_len, blocks, tokenizer)
    return Parts(core, Intake(tokenizer, model_config.vocab_size, eos, max_len, config.seed), template)


def _compute(device: Device, config: EngineConfig) -> torch.dtype | None:
    """Dtype of activations, None = as the weights."""
    if config.activation_dtype == "auto" and device.props.kind is DriverKind.HOST:
        return torch.float32
    return DTYPES[config.activation_dtype]


def _dummy_seed(config: EngineConfig) -> int | None:
    return (config.seed or 0) if config.load_format == "dummy" else None


def _wanted_len(model: ModelConfig, config: EngineConfig) -> int:
    limit = model.max_position_embeddings
    if config.max_model_len is None:
        return limit
    if config.max_model_len > limit:
        raise invalid("max_model_len", config.max_model_len, f"the model has {limit} positions", nearest=limit)
    return config.max_model_len


def _check_dummy(device: Device, config: ModelConfig) -> None:
    """Refuse random weights that the device cannot hold, however large the numbers in config.json are."""
    free, total = device.memory_info()[0] or UNKNOWN_MEMORY, 0
    for name, wanted in wanted_tensors(config):
        total += math.prod(wanted.shape) * (config.dtype or torch.float32).itemsize
        if total > free:
            rule = f"needs more bytes than the {free} that are free on {device.spec}: {total} up to tensor {name!r}"
            raise invalid("load_format", "dummy", rule)


def _cache_size(device: Device, block: int, config: EngineConfig, wanted: int) -> tuple[int, int]:
    """(number of blocks, longest sequence). A length that was asked for must fit; a default one is cut to fit.

    `block` is the size of one block in bytes.
    """
    page = config.block_size
    per_sequence = -(-wanted // page)
    blocks = config.num_blocks
    if blocks is None:
        blocks = min(_affordable(device, block, config), per_sequence * config.max_num_seqs)
    if blocks >= per_sequence:
        return blocks, wanted
    if config.max_model_len is not None or blocks < 1:
        raise InvalidArgument(
            f"the cache holds {blocks} blocks of {page} tokens, one sequence of max_model_len {wanted} needs "
            f"{per_sequence}; lower max_model_len to {blocks * page}, or raise num_blocks or memory_fraction"
        )
    logger.info(
        "max_model_len is %d: %d cache blocks of %d tokens hold no longer sequence", blocks * page, blocks, page
    )
    return blocks, blocks * page


def _affordable(device: Device, block: int, config: EngineConfig) -> int:
    own = device.props.kind is DriverKind.HARDWARE
    fraction = config.memory_fraction or (OWN_MEMORY if own else SHARED_MEMORY)
    free, _ = device.memory_info()
    return int((free or UNKNOWN_MEMORY) * fraction) // block
