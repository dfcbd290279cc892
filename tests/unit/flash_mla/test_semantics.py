"""What the attention ops mean, against the plain formula in numpy and against worked-out truth tables."""

from __future__ import annotations

import itertools
import math
from types import ModuleType

import numpy as np
import pytest
import torch

from deepinfer.ops.flash_mla import (
    KVFormat,
    decode,
    kv_cache_read,
    kv_cache_write,
    merge_states,
    new_cache,
    prefill,
    sparse_attention_fused,
    sparse_decode,
    sparse_prefill,
)
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.registry import get_spec

D, D_V = 16, 16


def _gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _close(got: torch.Tensor, wanted: np.ndarray, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(got.double().numpy(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("sink", [None, -math.inf, math.inf, 0.5])
@pytest.mark.parametrize("causal", [True, False])
def test_decode_formula(oracle: ModuleType, causal: bool, sink: float | None) -> None:
    """Decode against the definition, key by key, with the reference held to the same."""
    g, page, lens, s_q, heads = _gen(1), 3, [0, 1, 4, 7], 2, 2
    q, cache = torch.randn(4, s_q, heads, D, generator=g), torch.randn(9, page, D, generator=g)
    table = torch.randperm(9, generator=g)[:8].view(4, 2).repeat(1, 2)
    sinks = None if sink is None else torch.full((heads,), sink)
    out, lse = decode(q, cache, table, torch.tensor(lens), format="f32", d_v=D_V, causal=causal, attn_sink=sinks)
    args = {"q": q, "kv_cache": cache, "block_table": table, "seq_lens": torch.tensor(lens), "attn_sink": sinks,
            "format": "f32", "d_v": D_V, "causal": causal, "softmax_scale": D**-0.5}
    ref_out, ref_lse = get_spec("flash_mla.decode").reference(args)
    for r, i, h in itertools.product(range(4), range(s_q), range(heads)):
        seen = max(lens[r] - s_q + i + 1, 0) if causal else lens[r]
        keys = np.array([cache[table[r, j // page], j % page].numpy() for j in range(seen)])
        o, e, _ = oracle.attention(q[r, i, h].numpy(), keys, D_V, D**-0.5, sink)
        _close(out[r, i, h], o)
        _close(ref_out[r, i, h], o, 1e-12)
        assert lse[r, h, i].item() == pytest.approx(e, abs=2e-6)
        assert ref_lse[r, h, i].item() == pytest.approx(e, abs=1e-12)


def test_sparse_formula(oracle: ModuleType) -> None:
    """Sparse prefill and decode against the definition: ignored, repeated and cut entries."""
    g = _gen(2)
    q, kv = torch.randn(3, 2, D, generator=g), torch.randn(6, D, generator=g)
    indices = torch.tensor([[-1, 2, 2, 99, 5], [0, 1, 2, 3, 4], [-1, -2, 6, 7, 2**31 - 1]])
    lengths = torch.tensor([4, 2, 5])
    seen = [[2, 2], [0, 1], []]
    out, lse, top = sparse_prefill(q, kv, indices, topk_length=lengths, d_v=D_V, softmax_scale=0.7)
    paged, paged_lse = sparse_decode(
        q[:, None], kv.view(3, 2, D), indices[:, None], format="f32", topk_length=lengths, d_v=D_V, softmax_scale=0.7
    )
    for t, h in itertools.product(range(3), range(2)):
        o, e, m = oracle.attention(q[t, h].numpy(), kv[seen[t]].numpy(), D_V, 0.7)
        _close(out[t, h], o)
        _close(paged[t, 0, h], o)
        assert (lse[h, t].item(), top[h, t].item()) == (pytest.approx(e, abs=2e-6), pytest.approx(m, abs=2e-6))
        assert paged_lse[t, h, 0].item() == pytest.approx(e, abs=2e-6)


@pytest.mark.parametrize(("n_q", "n_k"), [(2, 3), (3, 2), (1, 4), (4, 1)])
def test_bottom_right(n_q: int, n_k: int) -> None:
    """Which key each query sees, read off unit values (C18)."""
    kv, q = torch.eye(n_k, 16), torch.zeros(n_q, 1, 16)
    cu_q, cu_k = torch.tensor([0, n_q]), torch.tensor([0, n_k])
    out, lse = prefill(q, kv, cu_q, cu_k=cu_k, d_v=16)
    table = torch.zeros(1, 1, dtype=torch.int32)
    paged, _ = decode(q[None], kv[None], table, torch.tensor([n_k]), format="f32", d_v=16)
    tables = {
        (2, 3): [[1, 1, 0], [1, 1, 1]], (3, 2): [[0, 0], [1, 0], [1, 1]], (1, 4): [[1, 1, 1, 1]],
        (4, 1): [[0], [0], [0], [1]],
    }
    seen = torch.tensor(tables[n_q, n_k])
    assert torch.equal((out[:, 0, :n_k] > 0).long(), seen)
    assert torch.equal((paged[0, :, 0, :n_k] > 0).long(), seen)
    counts = seen.sum(1).float()
    torch.testing.assert_close(lse[0], counts.log())


def test_empty_rows_beside_full_ones() -> None:
    """Lengths 0, 1, 63, 64, 65, 0: each row equals a batch of one; empty rows are (0, -inf) (C01)."""
    g, lens = _gen(3), [0, 1, 63, 64, 65, 0]
    q, cache = torch.randn(6, 1, 16, 64, generator=g), torch.randn(12, 64, 64, generator=g)
    table = torch.arange(12).view(6, 2)
    out, lse = decode(q, cache, table, torch.tensor(lens), format="f32", d_v=64)
    for r, n in enumerate(lens):
        alone = decode(q[r : r + 1], cache, table[r : r + 1], torch.tensor([n]), format="f32", d_v=64)
        assert torch.equal(out[r], alone[0][0])
        assert torch.equal(lse[r], alone[1][0])
        assert bool((lse[r] == -torch.inf).all()) is (n == 0)
        assert bool(out[r].eq(0).all()) is (n == 0)


def test_no_finite_stand_in() -> None:
    """The one visible key has logit -20000: it wins all the same (C12)."""
    q, kv = torch.tensor([[[-20000.0, 0.0]]]), torch.tensor([[1.0, 1.0], [0.0, 100.0]])
    out, lse, top = sparse_prefill(q, kv, torch.tensor([[0, -1]]), d_v=2, softmax_scale=1.0)
    assert out.tolist() == [[[1.0, 1.0]]]
    assert (lse.item(), top.item()) == (-20000.0, -20000.0)


def test_natural_logarithm() -> None:
    """Two equal keys give lse = logit + ln 2, not + 1 (C08, C09)."""
    q, kv, both = torch.ones(1, 1, 4), torch.ones(2, 4), torch.tensor([[0, 1]])
    out, lse, _ = sparse_prefill(q, kv, both, d_v=4, softmax_scale=0.5)
    assert lse.item() == pytest.approx(2.0 + math.log(2.0), abs=1e-6)
    assert out.eq(1).all()


def test_split_at_4096_merges_to_the_whole() -> None:
    """A base-2 lse in the merge would be off by 0.1 here; the bound is far below (C09)."""
    g = _gen(4)
    q, kv = torch.randn(2, 4, 64, generator=g), torch.randn(4500, 64, generator=g)
    cu, cut = torch.tensor([0, 2]), 4096
    whole = prefill(q, kv, cu, cu_k=torch.tensor([0, 4500]), d_v=64, causal=False)
    first = prefill(q, kv[:cut], cu, cu_k=torch.tensor([0, cut]), d_v=64, causal=False)
    second = prefill(q, kv[cut:], cu, cu_k=torch.tensor([0, 4500 - cut]), d_v=64, causal=False)
    out, lse = merge_states([first[0], second[0]], [first[1], second[1]])
    assert float((out - whole[0]).abs().max()) < 1e-6
    assert float((lse - whole[1]).abs().max()) < 2e-6


def test_merge_identity_is_exact() -> None:
    """(0, -inf) and even (NaN, -inf) change no bit, in any place and number (C04)."""
    g = _gen(5)
    out, lse = torch.randn(3, 4, 8, generator=g), torch.randn(4, 3, generator=g)
    nothing, void = torch.full((3, 4, 8), torch.nan), torch.full((4, 3), -torch.inf)
    for order in ([out, nothing], [nothing, out], [nothing, out, nothing], [out]):
        got = merge_states(order, [lse if part is out else void for part in order])
        assert torch.equal(got[0], out)
        assert torch.equal(got[1], lse)
    for n in (1, 2, 5):
        got = merge_states([nothing] * n, [void] * n)
        assert got[0].eq(0).all()
        assert got[1].eq(-torch.inf).all()


def test_merge_order() -> None:
    """Commutative and associative to rounding (C04)."""
    g = _gen(6)
    outs, lses = torch.randn(3, 2, 2, 8, generator=g), torch.randn(3, 2, 2, generator=g) * 5
    whole = merge_states(outs, lses)
    for order in itertools.permutations(range(3)):
        torch.testing.assert_close(merge_states(outs[list(order)], lses[list(order)]), whole, rtol=1e-5, atol=1e-6)
    pair = merge_states(outs[:2], lses[:2])
    nested = merge_states([pair[0], outs[2]], [pair[1], lses[2]])
    torch.testing.assert_close(nested, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["latent", "paged"])
def test_nan_reaches_only_rows_that_see_it(kind: str) -> None:
    """Under the causal mask a NaN key spoils the queries at and after it, no earlier one."""
    g, n, bad = _gen(7), 40, 25
    q, kv = torch.randn(n, 2, 32, generator=g), torch.randn(n, 32, generator=g)
    clean = prefill(q, kv, torch.tensor([0, n]), cu_k=torch.tensor([0, n]), d_v=32)
    kv[bad] = torch.nan
    if kind == "latent":
        out, lse = prefill(q, kv, torch.tensor([0, n]), cu_k=torch.tensor([0, n]), d_v=32)
    else:
        out, lse = prefill(q, kv.view(5, 8, 32), torch.tensor([0, n]), block_table=torch.arange(5)[None],
                           seq_lens=torch.tensor([n]), format="f32", d_v=32)
    torch.testing.assert_close(out[:bad], clean[0][:bad], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse[:, :bad], clean[1][:, :bad], rtol=1e-5, atol=1e-6)
    assert out[bad:].isnan().all()
    assert lse[:, bad:].isnan().all()


def test_infinite_value_per_head() -> None:
    """An inf in v reaches its own head and channel of the rows that see it, as inf."""
    g, n, bad = _gen(8), 12, 7
    q, k = torch.randn(n, 2, 8, generator=g), torch.randn(n, 2, 8, generator=g)
    v = torch.randn(n, 2, 4, generator=g)
    v[bad, 1, 2] = torch.inf
    out, _ = prefill(q, k, torch.tensor([0, n]), cu_k=torch.tensor([0, n]), v=v)
    hit = torch.zeros_like(out, dtype=torch.bool)
    hit[bad:, 1, 2] = True
    assert torch.equal(out == torch.inf, hit)
    assert out[~hit].isfinite().all()


def test_nan_does_not_cross_requests() -> None:
    g = _gen(9)
    q, cache = torch.randn(3, 2, 2, 32, generator=g), torch.randn(3, 8, 32, generator=g)
    cache[1, 2] = torch.nan
    out, lse = decode(q, cache, torch.tensor([[0], [1], [2]]), torch.tensor([5, 5, 8]), format="f32", d_v=32)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()
    assert lse[[0, 2]].isfinite().all()


def test_last_entry_only() -> None:
    """All but the last of S entries hidden, S around 512 (C21)."""
    for n in (511, 512, 513, 600, 1024):
        kv = torch.zeros(n, 16)
        kv[-1] = 3.0
        indices = torch.full((1, n), -1)
        indices[0, -1] = n - 1
        out, lse, _ = sparse_prefill(torch.ones(1, 1, 16), kv, indices, d_v=16, softmax_scale=1.0)
        assert out.eq(3).all()
        assert lse.item() == 48.0


def test_two_pools_are_one() -> None:
    """Attention over two pools equals attention over their rows in one, and the merge of both parts."""
    g = _gen(10)
    q = torch.randn(2, 1, 3, 32, generator=g)
    first, second = torch.randn(4, 4, 32, generator=g), torch.randn(3, 2, 32, generator=g)
    i, j = torch.randint(-2, 18, (2, 1, 9), generator=g), torch.randint(-2, 8, (2, 1, 5), generator=g)
    both = sparse_decode(q, first, i, format="f32", d_v=32, extra_kv_cache=second, extra_format="f32", extra_indices=j)
    rows = torch.cat((first.view(16, 32), second.view(6, 32)))
    flat = torch.cat((torch.where((i >= 0) & (i < 16), i, -1), torch.where((j >= 0) & (j < 6), j + 16, -1)), -1)
    one = sparse_decode(q, rows[None], flat, format="f32", d_v=32)
    torch.testing.assert_close(both, one, rtol=1e-5, atol=1e-6)
    parts = [sparse_decode(q, first, i, format="f32", d_v=32), sparse_decode(q, second, j, format="f32", d_v=32)]
    merged = merge_states([part[0] for part in parts], [part[1] for part in parts])
    torch.testing.assert_close(merged, both, rtol=1e-5, atol=1e-6)


def test_sink_is_applied_once() -> None:
    """Parts without sink, merged with it, equal the whole with it."""
    g = _gen(11)
    q, kv = torch.randn(2, 3, 16, generator=g), torch.randn(9, 16, generator=g)
    sink = torch.tensor([0.3, torch.inf, -torch.inf])
    cu = torch.tensor([0, 2])
    whole = prefill(q, kv, cu, cu_k=torch.tensor([0, 9]), d_v=16, causal=False, attn_sink=sink)
    parts = [prefill(q, kv[s], cu, cu_k=torch.tensor([0, len(kv[s])]), d_v=16, causal=False)
             for s in (slice(0, 4), slice(4, 9))]
    merged = merge_states([part[0] for part in parts], [part[1] for part in parts], attn_sink=sink)
    torch.testing.assert_close(merged, whole, rtol=1e-5, atol=1e-6)
    assert whole[0][:, 1].eq(0).all()
    assert whole[1].isfinite().all()


@pytest.mark.parametrize("name", ["bf16", "f32", "v4_fp8", "v41_fp8", "v41_fp4_paged"])
def test_fused_is_the_composition(name: str) -> None:
    """Rotation by the complex product, sparse decode, inverse rotation; dequantised within a step of e4m3."""
    g, tokens, heads = _gen(12), 3, 2
    dtype = torch.float32 if name == "f32" else torch.bfloat16
    q = torch.randn(tokens, heads, 512, generator=g).to(dtype)
    cache = new_cache(name, 2, 8, 0 if LAYOUTS[name].quantised else 512)
    kv_cache_write(cache, torch.randn(16, 512, generator=g), torch.arange(16), format=name)
    angle = torch.rand(20, 32, generator=g) * 6
    table = torch.cat((angle.cos(), angle.sin()), 1)
    positions, indices = torch.tensor([0, 7, 19]), torch.randint(16, (tokens, 6), generator=g)
    made, lse = sparse_attention_fused(q, cache, indices, positions, table, format=name)

    def turn(x: torch.Tensor, sign: float) -> torch.Tensor:
        pairs = torch.view_as_complex(x[..., 448:].double().unflatten(-1, (32, 2)).contiguous())
        spin = torch.polar(torch.ones(tokens, 1, 32).double(), sign * angle[positions].double()[:, None])
        return torch.cat((x[..., :448].double(), torch.view_as_real(pairs * spin).flatten(-2)), -1)

    rows = kv_cache_read(cache, torch.arange(16), format=name).double()
    logits = torch.einsum("thd,tkd->thk", turn(q, 1.0), rows[indices]) * 512**-0.5
    wanted = turn(torch.einsum("thk,tkd->thd", logits.softmax(-1), rows[indices]), -1.0)
    scale = torch.exp2(made.scale.double() - 127)
    got = (made.data.double().unflatten(-1, (16, 32)) * scale[..., None]).flatten(-2)
    torch.testing.assert_close(lse, logits.logsumexp(-1).T.float(), rtol=1e-5, atol=1e-5)
    assert bool(((got - wanted).abs() <= wanted.abs() * 2**-4 + scale.repeat_interleave(32, -1) * 2**-9).all())
    assert made.scale_dtype == "ue8m0"
    assert made.block == (1, 32)


def test_formats_need_a_name() -> None:
    """uint8 caches never pass as something else; the message says what to do (C25)."""
    q, cache = torch.zeros(1, 1, 1, 576).bfloat16(), new_cache(KVFormat.V32_FP8, 1, 4)
    table, lens = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="V32_FP8"):
        decode(q, cache, table, lens)
    out, _ = decode(q, cache, table, lens, format=KVFormat.V32_FP8)
    assert out.eq(0).all()
