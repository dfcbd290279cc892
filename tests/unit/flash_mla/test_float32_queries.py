"""Float32 queries to quantised caches: the kernels of the cpu backend and the portable tier against the reference.

The cases pair quantised formats with bf16 queries, because backends that expand rows to bf16 refuse float32 ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from deepinfer.conformance.compare import close
from deepinfer.hal import use_backend
from deepinfer.ops.flash_mla import decode_cases, sparse_decode_cases
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.registry import Op, get_spec

QUANTISED = sorted(name for name, layout in LAYOUTS.items() if layout.quantised)


def _problems(op: str, args: dict[str, Any]) -> list[str]:
    spec, found = get_spec(op), []
    args["q"] = args["q"].float() * 1.001  # not bf16 values
    with use_backend("cpu"):
        native = Op(spec)(*(args[param.name] for param in spec.params))
    for outputs in (native, spec.portable(args, (None,) * len(spec.returns))):
        for name, got, wanted in zip(spec.returns, outputs, spec.reference(args), strict=True):
            found += close(name, got, wanted, spec.tolerance(args, name))
    return found


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("page", [1, 5, 16])
def test_decode(name: str, page: int) -> None:
    shape = decode_cases.Shape((0, 3, 20), s_q=2, h=3, format=name, page=page, sink="normal", d_v=100, scale=-0.7)
    generator = torch.Generator().manual_seed(page)
    for causal in (True, False):
        assert _problems("flash_mla.decode", replace(shape, causal=causal).make(generator)) == []


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("extra", ["f32", "v41_fp4_paged"])
def test_two_pools(name: str, extra: str) -> None:
    if LAYOUTS[extra].width not in (0, LAYOUTS[name].width):
        extra = name
    shape = sparse_decode_cases.Shape(2, 2, 3, name, 9, 3, 12, "wild", "token", extra, sink="mixed", d_v=100)
    assert _problems("flash_mla.sparse_decode", shape.make(torch.Generator().manual_seed(len(name)))) == []
