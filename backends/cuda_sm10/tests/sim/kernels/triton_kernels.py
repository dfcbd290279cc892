"""Source of the triton_*.ptx fixtures: kernels as the Triton compiler emits them, for both targets.

Made with triton 3.6.0: python triton_kernels.py DIRECTORY. The compiler needs no GPU; the tests need only the PTX.
"""

import re
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def rms_norm(x, w, y, n, eps, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    mask = cols < n
    v = tl.load(x + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    v *= tl.rsqrt(tl.sum(v * v, 0) / n + eps)
    v *= tl.load(w + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row * n + cols, v.to(tl.bfloat16), mask=mask)


@triton.jit
def matmul(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, cols = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc += tl.dot(
            tl.load(a + rows[:, None] * K + (k + ks)[None, :]), tl.load(b + (k + ks)[:, None] * N + cols[None, :])
        )
    tl.store(c + rows[:, None] * N + cols[None, :], acc)


KERNELS = {
    "rms_norm": (rms_norm, {"x": "*bf16", "w": "*bf16", "y": "*bf16", "n": "i32", "eps": "fp32"}, {"BLOCK": 1024}),
    "matmul": (
        matmul,
        {"a": "*fp16", "b": "*fp16", "c": "*fp32", "N": "i32", "K": "i32"},
        {"BM": 64, "BN": 64, "BK": 32},
    ),
}

if __name__ == "__main__":
    for name, (fn, signature, constants) in KERNELS.items():
        for target in (90, 100):
            full = signature | dict.fromkeys(constants, "constexpr")
            ptx = triton.compile(
                ASTSource(fn=fn, signature=full, constexprs=constants), target=GPUTarget("cuda", target, 32)
            ).asm["ptx"]
            ptx = re.sub(r'(\.file\s+\d+ )"[^"]*/([^"/]+)"', r'\1"\2"', ptx)
            ptx = re.sub(
                r"\s*\.section\s+\.debug_\w+\s*\{.*?\n\s*\}", "", ptx, flags=re.S
            )  # names of the machine it was made on
            Path(sys.argv[1], f"triton_{name}_sm{target}.ptx").write_text(ptx)
