"""Model definitions built from `deepinfer.ops`, and the reading of checkpoints. Knows no backend."""

from deepinfer.models.config import ModelConfig, load_config, parse_config
from deepinfer.models.model import Model, Progress, open_weights
from deepinfer.models.step import StepInput

__all__ = ["Model", "ModelConfig", "Progress", "StepInput", "load_config", "open_weights", "parse_config"]
