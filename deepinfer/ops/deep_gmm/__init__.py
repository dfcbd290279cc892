"""Deep GMM: dense, grouped and masked grouped matrix multiply in bf16, fp8 and fp8 x fp4."""
