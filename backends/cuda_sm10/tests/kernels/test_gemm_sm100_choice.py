"""SM100 products: which device takes which kernel, the tile of a shape, and that host and device agree on its sizes."""

from __future__ import annotations

import pytest
import torch
from deepinfer_cuda import jit
from deepinfer_cuda.kernels.gemm import KERNELS, Sm90Gemm, Sm100Gemm
from deepinfer_cuda.kernels.gemm_tiles import SM100_TILES, choose

from deepinfer.hal import DeviceProps, DriverKind
from deepinfer.jit import Build, BuildCache
from deepinfer.registry import Call, TensorMeta

UNITS = 148


def call() -> Call:
    meta = TensorMeta.of(torch.zeros(64, 64, dtype=torch.bfloat16))
    absent = dict.fromkeys(("a_scale", "b_scale", "b_packed", "c", "bias"))
    args = {"a": meta, "a_recipe": "plain", "b": meta, "b_recipe": "plain", "b_layout": "", **absent}
    return Call("deep_gmm.gemm", {**args, "out_dtype": torch.bfloat16}, torch.device("cpu"))


@pytest.mark.parametrize(("arch", "kernel"), [("sm_90", "sm90"), ("sm_100", "sm100"), ("sm_103", "sm100")])
def test_each_architecture_has_one_kernel(arch: str, kernel: str) -> None:
    props = DeviceProps("device", arch, DriverKind.HARDWARE, compute_units=UNITS)
    taken = [type(k)() for k in (Sm90Gemm(), Sm100Gemm()) if k.supports(props, call())]
    assert [k.name for k in taken] == [f"{kernel}_gemm_bf16"]
    refused = Sm90Gemm() if kernel == "sm100" else Sm100Gemm()
    assert any(f"the device is {arch}" in reason for reason in refused.supports(props, call()).reasons)


def test_all_three_products_exist_on_both() -> None:
    for prefix in ("sm90", "sm100"):
        ops = {kernel.op for kernel in KERNELS if kernel.name.startswith(prefix) and kernel.name.endswith("gemm_bf16")}
        assert ops == {"deep_gmm.gemm", "deep_gmm.grouped_gemm", "deep_gmm.masked_grouped_gemm"}


def test_large_products_take_pairs_and_small_ones_narrow_tiles() -> None:
    assert choose(8192, 8192, 8192, UNITS, tiles=SM100_TILES) == SM100_TILES[0]
    few = choose(1, 4096, 7168, UNITS, tiles=SM100_TILES)
    assert few.sums
    assert few.parts > 1


def test_host_and_device_agree(tmp_path_factory: pytest.TempPathFactory) -> None:
    asserts = "".join(
        f"static_assert(di::sm100::GemmBf16<{', '.join(str(x) for x in t.arguments)}>::k{name} == {value});\n"
        for t in SM100_TILES
        for name, value in (("SharedBytes", t.shared_bytes), ("Threads", t.threads), ("BlockM", t.rows))
    )
    source = f'#include "kernels/sm100/gemm_bf16.cuh"\n{asserts}__global__ void f() {{}}'
    build = Build("layout", source, jit.headers(), jit.FLAGS, "100a", "ptx")
    BuildCache([tmp_path_factory.mktemp("jit")]).get(build, jit.NvrtcCompiler())

