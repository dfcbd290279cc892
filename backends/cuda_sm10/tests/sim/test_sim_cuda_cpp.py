# ruff: noqa: E501
"""Kernels as other people write them: CUDA C++ with inline PTX, compiled here by NVRTC for both targets, run under every schedule."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import simlib

SOURCE = r"""
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;

// nvcuda::wmma: one warp, C = A B, 16 x 16 x 64
extern "C" __global__ void wmma_gemm(const half* a, const half* b, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    for (int k = 0; k < 64; k += 16) {
        wmma::load_matrix_sync(fa, a + k, 64);
        wmma::load_matrix_sync(fb, b + k, 64);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    for (int i = 0; i < fc.num_elements; ++i) fc.x[i] *= 0.5f;
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}

// Two warpgroups hand a buffer to and fro through named barriers; the register budget moves between them.
extern "C" __global__ void __launch_bounds__(256) ping_pong(int* out, int rounds) {
    __shared__ int box[128];
    int lane = threadIdx.x % 128;
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        for (int r = 0; r < rounds; ++r) {
            if (r) asm volatile("bar.sync 2, 256;" ::: "memory");
            box[lane] = r * 1000 + lane;
            asm volatile("bar.arrive 1, 256;" ::: "memory");
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        int sum = 0;
        for (int r = 0; r < rounds; ++r) {
            asm volatile("bar.sync 1, 256;" ::: "memory");
            sum += box[127 - lane];
            if (r + 1 < rounds) asm volatile("bar.arrive 2, 256;" ::: "memory");
        }
        out[lane] = sum;
    }
}

// Calls, a jump table, local arrays, half2 arithmetic, vector atomics, acquire and release across CTAs, a timer.
__device__ __noinline__ int collatz(int n) { int steps = 0; while (n != 1) n = n & 1 ? 3 * n + 1 : n / 2, ++steps; return steps; }
__device__ __noinline__ float pick(int which, float x) {
    switch (which) {
        case 0: return x + 1;
        case 1: return x * 2;
        case 2: return x - 3;
        case 3: return -x;
        case 4: return x * x;
        case 5: return 7;
        default: return 0;
    }
}
extern "C" __global__ void mixture(int* ticket, float* sums, float* out, int* steps) {
    int t = threadIdx.x + blockIdx.x * blockDim.x;
    float kept[8];
    for (int i = 0; i < 8; ++i) kept[i] = pick((t + i) % 7, (float)t);
    __half2 h = __hfma2(__floats2half2_rn(kept[t % 8], 1.0f), __float2half2_rn(2.0f), __float2half2_rn(1.0f));
    out[t] = __low2float(h) + __high2float(h) + kept[(t + 3) % 8];
    steps[t] = collatz(t + 1);
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sums), "f"(1.0f), "f"(2.0f), "f"(3.0f), "f"((float)t) : "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned long long clock;
        unsigned sm;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(clock));
        asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
        if (blockIdx.x) {
            int seen = 0;
            while (seen < (int)blockIdx.x) { asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(ticket) : "memory"); __nanosleep(20); }
        }
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(ticket) : "memory");
        if (clock == 1 && sm > 1000) ticket[0] = -1;
    }
}
"""


@cache
def ptx(arch: str) -> str:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with the cuda extra")
    import nvidia

    include = next(Path(p) / "cu13/include" for p in nvidia.__path__ if (Path(p) / "cu13/include/mma.h").exists())
    options = [
        f"--gpu-architecture=compute_{arch}",
        "-std=c++17",
        "-default-device",
        f"-I{include}",
        f"-I{include}/cccl",
    ]
    _, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"idioms.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    assert int(status) == 0, log.decode()
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = b" " * size
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.rstrip(b"\0").decode()


TARGETS = pytest.mark.parametrize(("arch", "dev"), [("90a", simlib.SM90), ("100a", simlib.SM100)])
SCHEDULES = [
    {"schedule": "eager"},
    {"schedule": "lazy"},
    *({"schedule": "random", "seed": s, "spurious_waits": "on"} for s in range(4)),
]


@TARGETS
def test_wmma(arch: str, dev: int) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (16, 64)).astype(np.float16) for _ in range(2))
    out = simlib.aligned((16, 16), np.float32)
    left, right = simlib.aligned((16, 64), np.float16), simlib.aligned((16, 64), np.float16)
    left[:], right[:] = a, b
    simlib.Module(ptx(arch), dev).launch("wmma_gemm", 1, 32, left, right, out)
    assert np.array_equal(out, 0.5 * (a.astype(np.float32) @ b.astype(np.float32).T))
    assert simlib.findings() == []


@TARGETS
def test_ping_pong_over_named_barriers(arch: str, dev: int) -> None:
    module = simlib.Module(ptx(arch), dev)
    for options in SCHEDULES:
        simlib.configure(**options)
        out = np.zeros(128, np.int32)
        module.launch("ping_pong", 1, 256, out, 5)
        assert out.tolist() == [sum(r * 1000 + 127 - lane for r in range(5)) for lane in range(128)], options
        assert simlib.findings() == []


@TARGETS
def test_calls_tables_atomics_and_tickets(arch: str, dev: int) -> None:
    module = simlib.Module(ptx(arch), dev)
    functions = [
        lambda x: x + 1,
        lambda x: x * 2,
        lambda x: x - 3,
        lambda x: -x,
        lambda x: x * x,
        lambda x: 7,
        lambda x: 0,
    ]
    want, steps = [], []
    for t in range(96):
        kept = [functions[(t + i) % 7](t) for i in range(8)]
        want.append(float(np.float16(2 * kept[t % 8] + 1)) + 3 + kept[(t + 3) % 8])
        n, count = t + 1, 0
        while n != 1:
            n, count = (3 * n + 1 if n & 1 else n // 2), count + 1
        steps.append(count)
    for options in SCHEDULES:
        simlib.configure(**options)
        ticket, sums = np.zeros(1, np.int32), simlib.aligned(4, np.float32)
        out, found = np.zeros(96, np.float32), np.zeros(96, np.int32)
        module.launch("mixture", 3, 32, ticket, sums, out, found)
        assert ticket.tolist() == [3]
        assert sums.tolist() == [96.0, 192.0, 288.0, float(sum(range(96)))]
        assert found.tolist() == steps
        assert np.allclose(out, want, rtol=1e-6), options
        assert simlib.findings() == []
