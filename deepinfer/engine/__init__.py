"""The offline inference engine: `LLM` and what it takes and gives. Policy only; it knows devices, never backends."""

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.graphs import GraphReport
from deepinfer.engine.llm import LLM
from deepinfer.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, StreamOutput
from deepinfer.engine.params import SamplingParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineConfig",
    "GraphReport",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "StreamOutput",
]
