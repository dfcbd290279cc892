"""Device code in Triton; the only modules of the package that import triton, loaded when a kernel is planned."""
