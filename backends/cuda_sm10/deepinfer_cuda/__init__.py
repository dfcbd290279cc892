"""The CUDA backend: compute capability 9.0 (sm90 kernels) and 10.x (sm100 kernels), on hardware and in a simulator."""
