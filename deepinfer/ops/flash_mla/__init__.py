"""Flash MLA: latent attention, dense and sparse, decode and prefill, and its KV cache formats."""
