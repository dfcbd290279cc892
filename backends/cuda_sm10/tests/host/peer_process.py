"""Copies between two CUDA devices with a kernel of one of them; run with a libcuda.so.1 that has two devices.

Prints what happened without and with peer access. The argument names the PTX of the kernel, which is pack_rows: it
reads device 1's memory from device 0.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import torch
from cuda.bindings import driver as cu
from deepinfer_cuda.driver import CudaDriver
from deepinfer_cuda.kernels.pack_rows import THREADS, UNIT
from deepinfer_cuda.result import check

from deepinfer.errors import DeepInferError
from deepinfer.hal import Arg, CopyKind, Image

ROWS, COLS, PITCH = 70, 9, 16


def copy(driver: CudaDriver, fn: int, source: int, target: int) -> None:
    """[ROWS, COLS] at `source` to rows of PITCH at `target`, on device 0."""
    problem = struct.pack("<QQ3q4I", source, target, 0, COLS, 1, 1, ROWS, COLS, PITCH)
    driver.launch(fn, (2, 1, 1), (THREADS, 1, 1), 0, [Arg(problem)], 0)
    driver.stream_synchronize(1, 0)


def main(ptx: bytes) -> None:
    driver = CudaDriver()
    here, there = driver.open(0), driver.open(1)
    values = torch.arange(ROWS * COLS, dtype=torch.int16)
    back = torch.zeros(ROWS, PITCH, dtype=torch.int16)
    source, target = driver.mem_alloc(there, values.nbytes), driver.mem_alloc(here, back.nbytes)
    driver.memcpy_async(there, source, values.data_ptr(), values.nbytes, CopyKind.H2D, 0)
    driver.stream_synchronize(there, 0)
    current = int(check("cuCtxGetCurrent", cu.cuCtxGetCurrent()))
    image = Image(ptx, "ptx", "pack")
    fn = driver.function(driver.module_load(here, image), UNIT.symbol)
    for handle in (0, 99):
        try:
            driver.enable_peer(here, handle)
        except DeepInferError as error:
            print(f"refused {handle}: {error}")
    try:
        driver.enable_peer(here, here)
    except DeepInferError as error:
        print(f"itself: {error}")
    driver.enable_peer(here, there)
    driver.enable_peer(here, there)
    copy(driver, fn, source, target)
    driver.memcpy_async(here, back.data_ptr(), target, back.nbytes, CopyKind.D2H, 0)
    driver.stream_synchronize(here, 0)
    print("copied", torch.equal(back[:, :COLS].reshape(-1), values), int(back[:, COLS:].abs().sum()))
    fn = driver.function(driver.module_load(there, image), UNIT.symbol)
    try:  # the other direction was not enabled
        problem = struct.pack("<QQ3q4I", target, source, 0, PITCH, 1, 1, ROWS, 1, 8)
        driver.launch(fn, (2, 1, 1), (THREADS, 1, 1), 0, [Arg(problem)], 0)
        driver.stream_synchronize(there, 0)
        print("the other direction worked")
    except DeepInferError as error:
        print(f"the other direction: {error}")
    print("the current context stays", current == int(check("cuCtxGetCurrent", cu.cuCtxGetCurrent())))


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_bytes())
