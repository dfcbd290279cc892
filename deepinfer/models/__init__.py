"""Model definitions built from `deepinfer.ops`, and the reading of checkpoints. Knows no backend."""

from deepinfer.models.config import ModelConfig, load_config, parse_config
from deepinfer.models.manifest import wanted_tensors
from deepinfer.models.model import Model, Progress, cache_bytes, open_weights
from deepinfer.models.step import StepInput

__all__ = [
    "Model", "ModelConfig", "Progress", "StepInput", "cache_bytes", "load_config", "open_weights", "parse_config",
    "wanted_tensors",
]  # fmt: skip
