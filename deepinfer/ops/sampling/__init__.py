"""Logits processing, sampling, draft verification and token masks."""
