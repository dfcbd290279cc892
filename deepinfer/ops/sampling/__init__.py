"""Logits processing, sampling, draft verification and token masks."""

from deepinfer.ops.sampling.api import apply_token_mask, log_probs, sample, verify_draft

__all__ = ["apply_token_mask", "log_probs", "sample", "verify_draft"]
