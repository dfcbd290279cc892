"""Keys that a token does not see never reach it, whatever they hold; keys that it sees do.

Tokens of dense attention share a job, so a later token's key lies in a block that earlier tokens multiply as well.
Lists, lengths and pages leave rows out too. Every test spoils one element (or scale) of such a key and of no other.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinfer_ascend950.device import open_simulated
from deepinfer_ascend950.drivers.sim import SimDriver
from deepinfer_ascend950.ops import mla

import deepinfer.hal as hal
from deepinfer.ops.flash_mla.decode_cases import Shape as DenseShape
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.ops.flash_mla.prefill_cases import Shape as RaggedShape
from deepinfer.ops.flash_mla.sparse_decode_cases import Shape as DecodeShape
from deepinfer.ops.flash_mla.sparse_prefill_cases import Shape as PrefillShape
from deepinfer.registry import Op, get_spec

BAD = (torch.nan, torch.inf, -torch.inf)
E4M3_NAN = (0x7F, 0xFF)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(name: str, args: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    with hal.use_backend("ascend950/sim"):
        spec = get_spec(name)
        return Op(spec)(*(args[p.name] for p in spec.params))


def agrees(name: str, args: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Results, equal to the reference within the op's tolerance, NaN and infinities at the same places."""
    spec, results = get_spec(name), run(name, args)
    for output, got, wanted in zip(spec.returns, results, spec.reference(args), strict=True):
        limit, got = spec.tolerance(args, output), got.double()
        odd = ~torch.isfinite(wanted)
        assert torch.equal(
            torch.where(odd, got, 0.0).nan_to_num(nan=7.0), torch.where(odd, wanted, 0.0).nan_to_num(nan=7.0)
        )
        bound = torch.maximum(torch.tensor(limit.abs), limit.rel * wanted.abs())
        assert bool(((got - wanted).abs()[~odd] <= bound.expand_as(wanted)[~odd]).all()), output
    return results


def spoil_row(cache: torch.Tensor, row: torch.Tensor, name: str, bad: float, channel: int) -> None:
    """Write `bad` to a channel of one row of a plain format, or of the plain channels of a quantised one."""
    layout = LAYOUTS[name]
    if not layout.quantised:
        row[channel] = bad
        return
    at = layout.code_bytes + (0 if layout.split else layout.scale_bytes)
    row[at : at + 2] = torch.tensor([bad]).bfloat16().view(torch.uint8)


# --- dense decode: the last key belongs to the last token alone.


def dense(name: str, length: int, h: int, s_q: int = 4) -> tuple[dict[str, Any], torch.Tensor]:
    """Arguments of a causal decode and the bytes (or channels) of the last key's row."""
    args = DenseShape(lens=(length,), s_q=s_q, h=h, page=16, format=name).make(generator(5)) | {"causal": True}
    last = length - 1
    block = int(args["block_table"][0, last // 16])
    return args, args["kv_cache"][block, last % 16]


def only_last_is_spoiled(args: dict[str, Any], s_q: int = 4) -> None:
    out, lse = agrees("flash_mla.decode", args)
    assert bool(torch.isfinite(out[:, : s_q - 1]).all())
    assert bool(torch.isfinite(lse[:, :, : s_q - 1]).all())
    assert not bool(torch.isfinite(out[:, s_q - 1]).all())


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("length", [64, 65, 97, 130])
@pytest.mark.parametrize("name", ["bf16", "f32"])
def test_dense_plain_rows(name: str, length: int, bad: float) -> None:
    args, row = dense(name, length, 8)
    row[3] = bad
    only_last_is_spoiled(args)


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("h", [1, 5, 16, 32])
def test_dense_heads(sim: SimDriver, h: int, policy: int) -> None:
    """Jobs of 64, 12, 4 and 2 tokens: the bad key lies in either vector core's half, with rows there or without."""
    sim.set_option("policy", policy)
    for s_q in (2, 3):
        args, row = dense("bf16", 100, h, s_q)
        row[100] = torch.nan
        only_last_is_spoiled(args, s_q)
        assert sim.warnings() == []


@pytest.mark.parametrize("code", E4M3_NAN)
@pytest.mark.parametrize("name", ["v32_fp8", "v41_fp8", "v4_fp8"])
def test_dense_codes(name: str, code: int) -> None:
    args, row = dense(name, 97, 8)
    if LAYOUTS[name].split:  # a block holds data rows, then scale rows
        block, place = divmod(96, 16)
        flat = args["kv_cache"][int(args["block_table"][0, block])].view(-1)
        row = flat[place * LAYOUTS[name].data_bytes :]
    row[5] = code
    only_last_is_spoiled(args)


@pytest.mark.parametrize("bad", BAD)
def test_dense_float_scales(bad: float) -> None:
    args, row = dense("v32_fp8", 97, 8)
    row[512 + 4 : 512 + 8] = torch.tensor([bad]).view(torch.uint8)
    only_last_is_spoiled(args)


@pytest.mark.parametrize(("name", "at", "code"), [("v41_fp8", 512, 0xFF), ("v41_fp4", 256, 0x7F)])
def test_dense_coded_scales(name: str, at: int, code: int) -> None:
    args, row = dense(name, 97, 8)
    row[at + 3] = code
    only_last_is_spoiled(args)


@pytest.mark.parametrize("bad", BAD)
def test_dense_key_only_channels(bad: float) -> None:
    """The channels behind the values enter S alone."""
    for name in ("bf16", "v32_fp8"):
        args, row = dense(name, 97, 8)
        spoil_row(args["kv_cache"], row, name, bad, 570)
        only_last_is_spoiled(args)


def test_split_keys_with_a_bad_last_key() -> None:
    args, row = dense("bf16", 1300, 8)
    row[3] = torch.nan
    only_last_is_spoiled(args)


def test_bad_request_beside_good_ones() -> None:
    """Other requests keep their bits."""
    args = DenseShape(lens=(70, 90, 33), s_q=4, h=8, page=16).make(generator(6)) | {"causal": True}
    clean = run("flash_mla.decode", args)
    args["kv_cache"][int(args["block_table"][1, 89 // 16]), 89 % 16, 7] = torch.inf
    dirty = agrees("flash_mla.decode", args)
    for request in (0, 2):
        assert all(torch.equal(a[request], b[request]) for a, b in zip(clean, dirty, strict=True))


# --- dense prefill: token t sees t + 1 keys; several jobs per core, values apart from keys.


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ["bf16", "f32"])
@pytest.mark.parametrize("kind", ["latent", "paged", "per_head"])
def test_prefill_bad_key_in_the_middle(kind: str, name: str, bad: float) -> None:
    n, at, h = 90, 41, 2 if kind == "per_head" else 20
    args = RaggedShape(kind, ((n, n), (5, 5)), h=h, format=name).make(generator(7)) | {"causal": True}
    target = args["v"] if kind == "per_head" else args["kv"]
    if kind == "paged":
        page = target.shape[1]
        target[int(args["block_table"][0, at // page]), at % page, 9] = bad
    elif kind == "per_head":
        target[at, 1, 9] = bad
    else:
        target[at, 9] = bad
    out, _ = agrees("flash_mla.prefill", args)
    assert bool(torch.isfinite(out[:at]).all())
    assert bool(torch.isfinite(out[n:]).all())
    assert not bool(torch.isfinite(out[at:n, -1 if kind == "per_head" else 0]).all())


def test_prefill_many_bad_jobs() -> None:
    """Every fourth key is bad from key 24 on, in the key part or the value part: many jobs of a core are marked."""
    args = RaggedShape("per_head", ((150, 150), (70, 70)), h=3, format="bf16").make(generator(8)) | {"causal": True}
    args["v"][24::8, :, 3] = torch.nan
    args["kv"][28::8, 1, 5] = torch.nan
    out, _ = agrees("flash_mla.prefill", args)
    assert bool(torch.isfinite(out[:24]).all())
    assert not bool(torch.isfinite(out[24:150, :, 3]).any())


def test_prefill_tokens_before_the_first_key() -> None:
    """More tokens than keys: the first tokens of a marked job see nothing."""
    args = RaggedShape("latent", ((20, 12),), h=4, format="bf16").make(generator(9)) | {"causal": True}
    args["kv"][3, 0] = torch.inf
    out, lse = agrees("flash_mla.prefill", args)
    assert bool((out[:8] == 0).all())
    assert bool((lse[:, :8] == -torch.inf).all())
    assert bool(torch.isfinite(out[8:11]).all())


def test_windows_of_jobs(sim: SimDriver) -> None:
    """A core remembers marks for a window of jobs: here 64, of 3 * 50 jobs in all."""
    pairs = ((5, 6),) * 50
    args = RaggedShape("per_head", pairs, h=3, format="bf16").make(generator(13)) | {"causal": True}
    args["v"][5::18, 1, 3] = torch.nan
    out, lse = torch.zeros(250, 3, 128).bfloat16(), torch.zeros(3, 250)
    k, v = args["kv"], args["v"]
    cut = mla.Rows(((0, k.stride(0) * 2, 384, 0), (0, v.stride(0) * 2, 256, 384)), 0, 0, 0, 0, 0, 0, 0, 640)
    problem = mla.Problem(
        args["q"].unsqueeze(0), (mla.Pool(k, None, None, cut, 300, 300, 0, 0),), out.unsqueeze(0), lse.unsqueeze(0),
        mla.HEADS, args["softmax_scale"], causal=True, cu_q=args["cu_q"], cu_k=args["cu_k"], values=v,
    )  # fmt: skip
    device = open_simulated(0)
    code = device.executable("mla_attend", ("-DDEEPINFER_MLA_WINDOW=64",))
    code.launch("mla_attend", (1, 1, 1), (1, 1, 1), problem.pack(), stream=device.current_stream())
    wanted = get_spec("flash_mla.prefill").reference(args)[0]
    assert torch.equal(out.isnan(), wanted.isnan())
    assert int(wanted.isnan().sum()) == 17
    assert bool(((out.double() - wanted).nan_to_num().abs() <= 2**-6).all())
    assert sim.warnings() == []


# --- lists and lengths: rows that nothing names, or that stand past a length.


@pytest.mark.parametrize("name", ["bf16", "v32_fp8", "v41_fp8", "v41_fp4"])
def test_sparse_decode_rows_left_out(name: str) -> None:
    """All rows but the listed ones are NaN in every code and scale; entries -1 and past the length are passed over."""
    args = DecodeShape(2, 1, 5, name, 30, 16, 70, lens="request", holes="wild").make(generator(10))
    args["topk_length"].clamp_(min=1, max=60)
    kept, _ = agrees("flash_mla.sparse_decode", args)
    cache, used = args["kv_cache"], torch.zeros(args["kv_cache"].shape[:2], dtype=torch.bool)
    for b in range(2):
        slots = args["indices"][b, 0, : int(args["topk_length"][b])].long()
        slots = slots[(slots >= 0) & (slots < used.numel())]
        used.view(-1)[slots] = True
    cache[~used] = 0xFF if cache.dtype is torch.uint8 else torch.nan
    args["indices"][:, :, 60:] = int((~used).view(-1).nonzero()[0]) if bool((~used).any()) else 0
    assert torch.equal(kept, agrees("flash_mla.sparse_decode", args)[0])


@pytest.mark.parametrize("name", ["bf16", "v32_fp8"])
def test_sparse_decode_listed_row_is_seen(name: str) -> None:
    args = DecodeShape(2, 1, 5, name, 30, 16, 20).make(generator(11))
    slot = int(args["indices"][1, 0][args["indices"][1, 0] >= 0][0])
    args["indices"][0][args["indices"][0] == slot] = -1
    row = args["kv_cache"][slot // 16, slot % 16]
    spoil_row(args["kv_cache"], row, name, torch.nan, 5)
    out, lse = agrees("flash_mla.sparse_decode", args)
    assert bool(torch.isfinite(out[0]).all())
    assert bool(torch.isnan(out[1]).all())
    assert bool(torch.isnan(lse[1]).all())


@pytest.mark.parametrize("bad", BAD)
def test_sparse_prefill_rows(bad: float) -> None:
    args = PrefillShape(3, 100, 5, 90, 576, holes="wild").make(generator(12))
    args["indices"][:2][args["indices"][:2] == 17] = -1
    args["indices"][2, 4] = 17
    args["kv"][17, 8] = bad
    out = agrees("flash_mla.sparse_prefill", args)[0]
    assert bool(torch.isfinite(out[:2]).all())
    assert not bool(torch.isfinite(out[2]).all())
