"""The packed fp4 kernels against the specification where they could differ: any bits, quotients beside every tie."""

from __future__ import annotations

import pytest
import torch
from deepinfer_cuda import simdevice
from deepinfer_triton.flash_mla import KvCacheRead, KvCacheWrite
from deepinfer_triton.quant import QuantizeMxfp4

import deepinfer
from deepinfer.ops import quant
from deepinfer.ops.flash_mla.formats import LAYOUTS, new_cache
from deepinfer.ops.quant.blocks import quantize_mxfp4_blocks
from deepinfer.registry import Op, get_spec, pin
from deepinfer.registry.dispatch import make_call

pytest.importorskip("triton", reason="the compiler is an optional dependency")
simulated = pytest.mark.skipif(not simdevice.probe().available, reason="the PTX simulator is not built")
FORMATS = sorted(name for name, layout in LAYOUTS.items() if layout.bits == 4)
READ, WRITE = get_spec("flash_mla.kv_cache_read"), get_spec("flash_mla.kv_cache_write")
THRESHOLDS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 0.0, 1.0])


def any_bits(rows: int, cols: int, generator: torch.Generator) -> torch.Tensor:
    """bf16 of all bits, the second half of the rows without NaN and inf."""
    x = torch.randint(-(2**15), 2**15, (rows, cols), generator=generator).short().view(torch.bfloat16)
    return torch.cat([x, torch.where(x.isfinite(), x, 1.0)])


def beside_ties(rows: int, cols: int, block: int, generator: torch.Generator) -> torch.Tensor:
    """Blocks of scale * threshold and its neighbours in bf16, where the block's largest value makes that scale."""
    scale = 1 + torch.randint(0, 8, (rows, cols // block, 1), generator=generator) / 8
    which = torch.randint(0, len(THRESHOLDS), (rows, cols // block, block), generator=generator)
    which[..., 0] = 7
    step = torch.randint(-1, 2, which.shape, generator=generator).short() * (which != 8) * (which != 7)
    x = ((THRESHOLDS[which] * scale).bfloat16().view(torch.int16) + step).view(torch.bfloat16)
    power = torch.randint(-3, 7, scale.shape, generator=generator)
    sign = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
    return (x * torch.exp2(power.float()).bfloat16() * sign.bfloat16()).flatten(1)


@simulated
def test_mxfp4_has_the_bytes_of_the_specification() -> None:
    generator, device = torch.Generator().manual_seed(5), deepinfer.device("cuda_sm90/sim")
    x = torch.cat([any_bits(8, 256, generator), beside_ties(16, 256, 32, generator)])
    (program,) = QuantizeMxfp4().programs(make_call(get_spec(QuantizeMxfp4.op), (x, (1, 32)), (None, None), x.device))
    assert program.function == "fp4.quantize_pairs"
    with deepinfer.use_backend(device), pin(device, QuantizeMxfp4.op, QuantizeMxfp4.name):
        got = quant.quantize_mxfp4(x)
    data, scale = quantize_mxfp4_blocks(x, (1, 32))
    assert torch.equal(got.data, data), "seed 5"
    assert torch.equal(got.scale, scale), "seed 5"


@simulated
@pytest.mark.parametrize("name", FORMATS)
def test_caches_have_the_bytes_and_values_of_the_specification(name: str) -> None:
    generator, device = torch.Generator().manual_seed(6), deepinfer.device("cuda_sm90/sim")
    layout = LAYOUTS[name]
    rows = any_bits(8, layout.width, generator)
    rows = torch.cat([rows, beside_ties(16, layout.width, layout.tile, generator)])
    cache = new_cache(name, len(rows) // 16 + 1, 16, 0, device="cpu").fill_(0x5A)
    want, slots = cache.clone(), torch.randperm(len(rows) + 8, generator=generator)[: len(rows)] - 2
    (written,) = KvCacheWrite().programs(make_call(WRITE, (cache, rows, slots, name), (), rows.device))
    (read,) = KvCacheRead().programs(make_call(READ, (cache, slots, name, torch.bfloat16), (None,), rows.device))
    assert (written.function, read.function) == ("fp4.write_pairs", "fp4.read_pairs")
    with deepinfer.use_backend("cpu"):
        Op(WRITE)(want, rows, slots, name)
        (values,) = Op(READ)(want, slots, name, torch.bfloat16)
    with deepinfer.use_backend(device), pin(device, WRITE.name, KvCacheWrite.name):
        Op(WRITE)(cache, rows, slots, name)
    with deepinfer.use_backend(device), pin(device, READ.name, KvCacheRead.name):
        (got,) = Op(READ)(cache, slots, name, torch.bfloat16)
    assert torch.equal(cache, want), "seed 6"
    assert torch.equal(got.view(torch.int16)[~got.isnan()], values.view(torch.int16)[~got.isnan()]), "seed 6"
    assert torch.equal(got.isnan(), values.isnan()), "seed 6"
