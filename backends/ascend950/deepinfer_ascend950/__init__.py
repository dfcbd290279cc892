"""Ascend 950 backend: AscendC kernels for the three families, drivers for hardware and for the simulator.

Importing this package is cheap: no driver is opened, no compiler is run, torch_npu is not touched.
"""
