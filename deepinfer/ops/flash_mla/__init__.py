"""Flash MLA: latent attention, dense and sparse, decode and prefill, and its KV cache formats."""

from deepinfer.ops.flash_mla.api import (
    decode,
    kv_cache_read,
    kv_cache_write,
    merge_states,
    prefill,
    slots_of,
    sparse_attention_fused,
    sparse_decode,
    sparse_prefill,
)
from deepinfer.ops.flash_mla.formats import KVFormat, cache_shape, new_cache

__all__ = [
    "KVFormat", "cache_shape", "decode", "kv_cache_read", "kv_cache_write", "merge_states", "new_cache", "prefill",
    "slots_of", "sparse_attention_fused", "sparse_decode", "sparse_prefill",
]
