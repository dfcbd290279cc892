"""Building kernels: one source, two compilers (g++ for the simulator, bisheng for hardware)."""
