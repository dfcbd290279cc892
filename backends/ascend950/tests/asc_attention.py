"""Scenarios of the mutation suite for the attention, cache and merge kernels: launches that reach every mutant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from deepinfer_ascend950.ops import cache, fused, merge, mla
from torch.nn import functional as F

from deepinfer.hal import Arg
from deepinfer.ops.flash_mla.cache_cases import Shape as CacheShape
from deepinfer.ops.flash_mla.codec import encode_rows
from deepinfer.ops.flash_mla.decode_cases import Shape as DenseShape
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.ops.flash_mla.prefill_cases import Shape as RaggedShape
from deepinfer.ops.flash_mla.rotate import rotate
from deepinfer.ops.flash_mla.sparse_decode_cases import Shape as DecodeShape
from deepinfer.ops.flash_mla.sparse_prefill_cases import Shape
from deepinfer.registry import get_spec

NUMBERS = {
    "mla_attend": range(30, 58),
    "kv_cache": range(70, 76),
    "merge_states": range(80, 84),
    "rotate": range(100, 106),
}
# (entry, grid, arguments, judgement, what the arguments point at)
Parts = tuple[str, int, list[Arg], Callable[[], bool], tuple[object, ...]]


def _close(got: torch.Tensor, wanted: torch.Tensor, limit: float) -> bool:
    return bool((got.double() - wanted).abs().max() <= limit * wanted.abs().max())  # false for NaN


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _sparse() -> Parts:
    """Three tokens on one core; later keys have larger logits, so bases move and O leaves the cube in between."""
    args = Shape(3, 300, 64, 330, 576, holes="wild").make(_generator(1))
    args["indices"][:, 3:300] = args["indices"][:, 3:300].sort().values
    args["indices"][:, :3] = -1
    args["kv"] *= torch.linspace(0.2, 5, 300)[:, None]
    args["softmax_scale"] *= 8
    q, kv, indices = args["q"], args["kv"], args["indices"]
    out, lse = torch.full((3, 64, 512), torch.nan).bfloat16(), torch.full((64, 3), torch.nan)
    pool = mla.Pool(kv, indices.unsqueeze(1), None, mla.plain_rows(576, 1152), 300, 300, 0, 330)
    problem = mla.Problem(
        q.unsqueeze(1), (pool,), out.unsqueeze(1), lse.t().unsqueeze(-1), mla.SPARSE, args["softmax_scale"]
    )
    wanted = get_spec("flash_mla.sparse_prefill").reference(args)
    right = lambda: _close(out, wanted[0], 2**-6) and _close(lse, wanted[1], 1e-3)  # noqa: E731
    return problem.entry, 1, problem.pack(), right, (args, pool)


def _same_odd(got: torch.Tensor, wanted: torch.Tensor, limit: float) -> bool:
    """`_close`, with NaN and infinities at the places of the wanted ones."""
    got, odd = got.double(), ~torch.isfinite(wanted)
    return torch.equal(got[odd].nan_to_num(nan=7.0), wanted[odd].nan_to_num(nan=7.0)) and _close(
        got.masked_fill(odd, 0.0), wanted.masked_fill(odd, 0.0), limit
    )


def _float_scales() -> Parts:
    """One key, so out is its codes times scales that were rounded to bf16 once, and nothing else."""
    args = DecodeShape(1, 1, 4, "v32_fp8", 1, 16, 60, "none").make(_generator(3))
    args["indices"][:] = 7
    out, lse = torch.full((1, 1, 4, 512), torch.nan), torch.full((1, 4, 1), torch.nan)
    pool = mla.paged_pool(args["kv_cache"], "v32_fp8", args["indices"], None, 1)
    problem = mla.Problem(args["q"], (pool,), out, lse, mla.SPARSE, args["softmax_scale"])
    wanted = get_spec("flash_mla.sparse_decode").reference(args)
    row = args["kv_cache"].view(-1, 656)[7]
    codes, scales = row[:512].view(torch.float8_e4m3fn).double(), row[512:528].clone().view(torch.float32)
    value = (codes.view(4, 128) * scales.bfloat16().double()[:, None]).flatten().expand(1, 1, 4, 512)
    right = lambda: _close(lse, wanted[1], 1e-6) and _close(out, value, 2**-22)  # noqa: E731
    return problem.entry, 1, problem.pack(), right, (args, pool)


def _short_jobs_with_sinks() -> Parts:
    """Seven jobs of one block: the sinks of four are in memory at a time."""
    args = DecodeShape(7, 1, 40, "bf16", 20, 16, 60, sink="mixed").make(_generator(12))
    out, lse = torch.full((7, 1, 40, 512), torch.nan).bfloat16(), torch.full((7, 40, 1), torch.nan)
    pool = mla.paged_pool(args["kv_cache"], "bf16", args["indices"], None, 20)
    problem = mla.Problem(args["q"], (pool,), out, lse, mla.SPARSE, args["softmax_scale"], args["attn_sink"])
    wanted = get_spec("flash_mla.sparse_decode").reference(args)
    right = lambda: _close(lse, wanted[1], 1e-5) and _close(out, wanted[0], 2**-6)  # noqa: E731
    return problem.entry, 1, problem.pack(), right, (args, pool)


def _many_float_scales() -> Parts:
    """Four blocks of keys with scales of their own, in both halves of a block and with holes."""
    args = DecodeShape(2, 1, 64, "v32_fp8", 230, 16, 300, holes="wild", sink="mixed").make(_generator(9))
    out, lse = torch.full((2, 1, 64, 512), torch.nan).bfloat16(), torch.full((2, 64, 1), torch.nan)
    pool = mla.paged_pool(args["kv_cache"], "v32_fp8", args["indices"], None, 230)
    problem = mla.Problem(args["q"], (pool,), out, lse, mla.SPARSE, args["softmax_scale"], args["attn_sink"])
    wanted = get_spec("flash_mla.sparse_decode").reference(args)
    right = lambda: _close(lse, wanted[1], 1e-5) and _close(out, wanted[0], 2**-6)  # noqa: E731
    return problem.entry, 1, problem.pack(), right, (args, pool)


def _causal() -> Parts:
    """Tokens that share a job, each with one key more than the one before."""
    args = DenseShape(lens=(90, 7), s_q=6, h=16, page=16).make(_generator(4))
    out, lse = torch.full((2, 6, 16, 512), torch.nan).bfloat16(), torch.full((2, 16, 6), torch.nan)
    table = args["block_table"]
    pool = mla.paged_pool(args["kv_cache"], "bf16", table, args["seq_lens"], table.shape[1] * 16)
    problem = mla.Problem(args["q"], (pool,), out, lse, mla.PAGED, args["softmax_scale"], causal=True)
    wanted = get_spec("flash_mla.decode").reference(args)
    right = lambda: _close(out, wanted[0], 2**-6) and _close(lse, wanted[1], 1e-4)  # noqa: E731
    return problem.entry, 1, problem.pack(), right, (args, pool)


def _per_head(pairs: tuple[tuple[int, int], ...], bad: tuple[int, ...] = ()) -> Parts:
    """Tiles of 64, 6 and 38 tokens: every second one leaves AIV1 without rows, and O is one piece."""
    args = RaggedShape("per_head", pairs, h=3).make(_generator(8))
    out, lse = torch.full((108, 3, 128), torch.nan).bfloat16(), torch.full((3, 108), torch.nan)
    k, v = args["kv"], args["v"]
    for key in bad:
        v[key, key % 3, 5] = torch.nan
    keys = sum(n for _, n in pairs)
    cut = mla.Rows(((0, k.stride(0) * 2, 384, 0), (0, v.stride(0) * 2, 256, 384)), 0, 0, 0, 0, 0, 0, 0, 640)
    pool = mla.Pool(k, None, None, cut, keys, keys, 0, 0)
    problem = mla.Problem(
        args["q"].unsqueeze(0), (pool,), out.unsqueeze(0), lse.unsqueeze(0), mla.HEADS, args["softmax_scale"],
        causal=True, cu_q=args["cu_q"], cu_k=args["cu_k"], values=v,
    )  # fmt: skip
    wanted = get_spec("flash_mla.prefill").reference(args)
    right = lambda: _same_odd(out, wanted[0], 2**-6) and _close(lse, wanted[1], 1e-4)  # noqa: E731
    return problem.entry, 1, problem.pack(), right, (args, pool)


def _rest_of_queries() -> Parts:
    """One key and queries in two parts: lse is the logit of their sum."""
    g = _generator(10)
    exact, kv = torch.randn(2, 16, 512, generator=g), (torch.randn(8, 512, generator=g)).bfloat16()
    q = torch.cat((exact.bfloat16(), (exact - exact.bfloat16().float()).bfloat16()[..., 448:]), -1)
    out, lse = torch.full((2, 16, 512), torch.nan), torch.full((16, 2), torch.nan)
    pool = mla.Pool(kv, torch.full((2, 1, 1), 3, dtype=torch.int32), None, mla.plain_rows(512, 1024), 8, 8, 0, 1)
    problem = mla.Problem(q.unsqueeze(1), (pool,), out.unsqueeze(1), lse.t().unsqueeze(-1), mla.SPARSE, 0.1, rest=64)
    both = q[..., :512].double()
    both[..., 448:] += q[..., 512:].double()
    wanted = (both @ kv[3].double() * 0.1).t()
    return problem.entry, 1, problem.pack(), lambda: _close(lse, wanted, 1e-6), (q, kv, pool, out)


def _rotated(back: bool) -> Parts:
    """Groups of 16 and 4 heads, five tokens on one core; rows come out rotated, or rotated back and quantised."""
    g = _generator(11)
    q, angle = torch.randn(5, 20, 512, generator=g), torch.rand(9, 32, generator=g) * 6
    table, positions = torch.cat((angle.cos(), angle.sin()), 1), torch.tensor([8, -5, 100, 3, 1])
    wanted = rotate(q.double() if back else q.bfloat16().double(), positions, table.double(), inverse=back)
    if not back:
        out = torch.full((5, 20, 576), torch.nan).bfloat16()
        q = q.bfloat16()
        packed = fused.rotate_arguments(q, positions, table, out, None, 64)
        right = lambda: _close(out[..., :512] + F.pad(out[..., 512:].double(), (448, 0)), wanted, 2**-15)  # noqa: E731
        return "rotate", 1, packed, right, (q, table, positions, out)
    codes, scales = torch.zeros(5, 20, 512).to(torch.float8_e4m3fn), torch.zeros(5, 20, 16, dtype=torch.uint8)
    packed = fused.rotate_arguments(q, positions, table, codes, scales, 0)
    parts = encode_rows(wanted.flatten(0, 1), LAYOUTS["v41_fp8"])

    def quantised() -> bool:
        made = codes.double().unflatten(-1, (16, 32)) * torch.exp2(scales.double() - 127)[..., None]
        return torch.equal(scales.flatten(), parts.scales.flatten()) and _close(made.flatten(-2), wanted, 2**-4)

    return "rotate", 1, packed, quantised, (q, table, positions, codes, scales)


def _written(name: str, dtype: torch.dtype) -> Parts:
    args = CacheShape(name, n=12, slots="wild", kind="wide", dtype=dtype).make_write(_generator(5))
    wanted: dict[str, Any] = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in args.items()}
    get_spec("flash_mla.kv_cache_write").reference(wanted)
    packed = cache.cache_arguments(args["kv_cache"], args["rows"], args["slots"], name, writes=True)
    right = lambda: torch.equal(args["kv_cache"], wanted["kv_cache"])  # noqa: E731
    return "kv_cache_write", 2, packed, right, (args,)


def _read() -> Parts:
    args = CacheShape("v41_fp8", n=12).make_read(_generator(6))
    rows = torch.full((12, 512), torch.nan)
    packed = cache.cache_arguments(args["kv_cache"], rows, args["slots"], "v41_fp8", writes=False)
    (wanted,) = get_spec("flash_mla.kv_cache_read").reference(args)
    return "kv_cache_read", 2, packed, lambda: torch.equal(rows.double(), wanted), (args, rows)


def _merged() -> Parts:
    g = _generator(7)
    outs, lses = torch.randn(9, 1, 3, 2, 2300, generator=g), torch.randn(9, 1, 2, 3, generator=g) * 3
    out, lse = torch.full((1, 3, 2, 2300), torch.nan), torch.full((1, 2, 3), torch.nan)
    wanted = get_spec("flash_mla.merge_states").reference({"outs": outs, "lses": lses, "attn_sink": None})
    packed = merge.merge_arguments(outs, lses, None, out, lse)
    right = lambda: _close(out, wanted[0], 1e-5) and _close(lse, wanted[1], 1e-5)  # noqa: E731
    return "merge_states", 1, packed, right, (outs, lses, out, lse)


def launches(source: str) -> list[Parts]:
    """Launches of one kernel file."""
    if source == "mla_attend":
        return [
            _sparse(), _float_scales(), _many_float_scales(), _causal(), _per_head(((70, 90), (38, 40))),
            _per_head(((70, 130), (38, 40)), bad=(62, 70, 127, 135)),
            _rest_of_queries(), _short_jobs_with_sinks(),
        ]  # fmt: skip
    if source == "kv_cache":
        return [_written("v41_fp8", torch.bfloat16), _written("v32_fp8", torch.float32), _read()]
    if source == "rotate":
        return [_rotated(False), _rotated(True)]
    return [_merged()]
