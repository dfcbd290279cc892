"""The whole subset of the C API: every name is declared and used by a test kernel, and does what is documented."""

from __future__ import annotations

import itertools
import re
import subprocess
from functools import lru_cache
from pathlib import Path

import asc_formats as formats
import numpy as np
import pytest
import torch
from asc_harness import SimDriver, run
from deepinfer_ascend950.toolchain.gxx import find
from deepinfer_ascend950.toolchain.sources import KERNELS, SIM_INCLUDE

from deepinfer.errors import DriverError

HERE = Path(__file__).parent
MODES = ("rn", "rna", "rd", "ru", "rz")
QUARTERS, HALVES = ("", "_v2", "_v3", "_v4"), ("", "_v2")


def crossed(*parts: str | tuple[str, ...]) -> list[str]:
    """All names made of one choice of each part."""
    return ["".join(p) for p in itertools.product(*[(p,) if isinstance(p, str) else p for p in parts])]


LOADS = (
    "",
    "_brc",
    "_brc_datablock",
    "_brc_elem2datablock",
    "_unpack",
    "_unpack4",
    "_deintlv",
    "_upsample",
    "_downsample",
)
STORES = ("", "_1st", "_pack", "_pack_quarter", "_intlv")
POSTUPDATE = ("", "_postupdate")
SUBSET = {
    "loads and stores": [
        *crossed("asc_loadalign", LOADS, POSTUPDATE),
        *crossed("asc_storealign", STORES, POSTUPDATE),
        *("asc_loadunalign_pre", "asc_loadunalign", "asc_loadunalign_postupdate", "asc_load"),
        *("asc_storeunalign_postupdate", "asc_storeunalign_post_postupdate", "asc_gather", "asc_scatter"),
        *("vsstb", "vlds", "asc_mem_bar"),
    ],
    "arithmetic": [
        *crossed("asc_", ("add", "mul", "max", "min"), ("", "_scalar")),
        *crossed("asc_", ("sub", "div", "madd", "axpy", "abs", "neg", "exp", "exp_sub", "ln", "sqrt", "relu")),
        *crossed("asc_", ("and", "or", "xor", "not", "shiftleft", "shiftright", "mull", "addc", "subc", "mula", "fma")),
        *crossed("asc_", ("shiftleft", "shiftright"), "_scalar"),
        *crossed("asc_", ("lt", "le", "gt", "ge", "eq", "ne"), ("", "_scalar")),
        *("vmax", "vmin", "vdup", "asc_select"),
    ],
    "masks and permutations": [
        *crossed("asc_", ("create_mask", "update_mask"), ("_b8", "_b16", "_b32")),
        *crossed("asc_", ("intlv", "deintlv", "pack", "duplicate", "duplicate_scalar", "arange", "copy")),
        *crossed("asc_", ("pack_to_low", "pack_to_high", "unpack_lower", "unpack_upper")),
        *crossed("asc_reduce_", ("sum", "max", "min"), ("", "_datablock")),
        "asc_pair_reduce_sum",
    ],
    "choosing lanes": [
        *crossed("asc_squeeze", ("", "_v2", "_with_status")),
        *crossed("asc_squeeze_and_storeunalign", ("", "_init", "_finalize")),
        *("asc_get_squeeze_status", "asc_get_ar_spr", "asc_unsqueeze", "asc_unsqueeze_s32"),
        *crossed("asc_", ("frequency", "cumulative"), "_histogram", ("_bin0", "_bin1")),
        *crossed("asc_", ("intlv", "deintlv"), ("_b8", "_b16", "_b32")),
        *("asc_abs_sub", "asc_leakyrelu", "asc_prelu", "asc_exp_sub_half2float", "asc_gather_datablock"),
        *("asc_exp_sub_v2", "asc_muls", "asc_muls_v2", "asc_pack_v2"),
    ],
    "conversions": [
        *crossed("asc_", ("bfloat162float", "half2float", "int162float"), HALVES),
        *crossed("asc_", ("e4m32float", "e5m22float", "hif82float", "e2m1x22bfloat16", "e1m2x22bfloat16"), QUARTERS),
        *crossed("asc_float2", ("bfloat16", "half", "int16"), tuple("_" + m for m in MODES), ("", "_sat"), HALVES),
        *crossed("asc_float2", ("e4m3_rn", "e5m2_rn", "hif8_rna"), ("", "_sat"), QUARTERS),
        *crossed("asc_float2int32_", MODES, ("", "_sat")),
        *crossed("asc_int322float_", MODES),
        *crossed("asc_bfloat162", ("e2m1x2", "e1m2x2"), ("_rn", "_rna", "_rz"), QUARTERS),
    ],
    "halves, integers, words": [
        *crossed("asc_half2", ("int8", "uint8"), tuple("_" + m for m in MODES), ("", "_sat"), HALVES),
        *crossed("asc_", ("half2int32", "bfloat162int32", "int162half"), tuple("_" + m for m in MODES)),
        *crossed("asc_half2int16", tuple("_" + m for m in MODES), "_sat"),
        *crossed("asc_", ("int82half", "uint82half", "rint", "round", "floor", "ceil", "trunc", "store")),
        *("asc_duplicate_merge", "asc_duplicate_highest_merge", "asc_load_dev", "asc_dcci", "asc_dci"),
        *crossed("asc_atomic_", ("add", "sub", "max", "min", "and", "or", "xor", "exch", "inc", "dec", "cas")),
        *crossed("asc_", ("popc", "zero_bits_cnt", "clz", "ffs", "ffz", "set_nthbit", "clear_nthbit")),
        "asc_get_phy_buf_addr",
    ],
    "copies": [
        *crossed("asc_copy_", ("gm2ub", "ub2gm", "gm2l1"), ("", "_align")),
        *crossed("asc_copy_", ("ub2l1", "ub2ub", "gm2l1_nd2nz", "gm2l1_dn2nz", "l12ub", "l12bt", "l12fb")),
        *crossed("asc_copy_l12l0", ("a", "b"), ("", "_transpose", "_mx")),
        *crossed("asc_copy_l0c2", ("ub", "gm", "l1")),
        *crossed("asc_set_", ("gm2ub", "ub2gm", "gm2l1"), ("_loop_size", "_loop1_stride", "_loop2_stride")),
        *("asc_fill_l1", "asc_set_copy_pad_val", "asc_set_gm2l1_nz_para", "asc_set_l3d_rpt_b"),
        *crossed(
            "asc_set_atomic_", ("add", "max", "min"), ("_float", "_float16", "_bfloat", "_int8", "_int16", "_int32")
        ),
        *("asc_set_atomic_none", "asc_set_atomic_add_int"),
    ],
    "cube": [
        *("asc_mmad", "asc_mmad_mx", "asc_set_mmad_direction_m", "asc_set_mmad_direction_n"),
        *("asc_enable_hf32", "asc_disable_hf32", "asc_set_fp32_mode", "asc_set_hf32_round_mode", "asc_enable_fp8"),
        *("asc_enable_hif8", "asc_set_l0c_copy_prequant", "asc_set_l0c_copy_config", "asc_set_l0c2gm_config"),
        *("asc_set_l0c_copy_nz_para", "asc_set_l0c2gm_nz2nd", "asc_set_l0c_copy_channel_para"),
    ],
    "synchronisation and system": [
        *("set_flag", "wait_flag", "get_buf", "rls_buf", "asc_lock", "asc_unlock", "pipe_barrier", "asc_sync"),
        *crossed("asc_sync_", ("notify", "wait", "pipe", "data_barrier", "vec", "mte2", "mte3")),
        *crossed("asc_sync_", ("inter", "subblock", "block", "intra"), ("_arrive", "_wait")),
        *("CrossCoreSetFlag", "CrossCoreWaitFlag", "InitSocState", "GetSsbufBaseAddr", "asc_init", "asc_set_ctrl"),
        *("asc_get_ctrl", "asc_dcci_single", "asc_dcci_entire_all", "asc_dcci_entire_out", "dcci", "asc_store_dev"),
        *("get_block_idx", "get_block_num", "get_subblockid", "asc_get_system_cycle", "asc_vf_call", "ascendc_assert"),
    ],
}


@lru_cache(maxsize=1)
def words() -> tuple[set[str], set[str]]:
    """(identifiers that the headers make, identifiers that kernels use), after the preprocessor."""
    declared, used = set(), set()
    sources = [*sorted((HERE / "kernels").glob("*.asc")), *sorted(KERNELS.glob("*.asc"))]
    flags = ["-std=c++20", "-E", "-x", "c++", *(f"-I{folder}" for folder in (SIM_INCLUDE, KERNELS, HERE / "kernels"))]
    for source in sources:
        text = subprocess.run([find(), *flags, str(source)], capture_output=True, text=True, check=True).stdout
        place = ""
        for line in text.splitlines():
            marker = re.match(r'# \d+ "([^"]+)"', line)
            if marker:
                place = marker[1]
            elif place.startswith(str(SIM_INCLUDE)):
                if not declared or source is sources[0]:
                    declared |= set(re.findall(r"\b[A-Za-z_]\w*", line))
            elif "/usr/" not in place:
                used |= set(re.findall(r"\b[A-Za-z_]\w*", line))
        used |= set(re.findall(r"\b(?:asc|ascendc)_\w+", source.read_text()))
    declared |= set(re.findall(r"#define (\w+)", "".join(p.read_text() for p in SIM_INCLUDE.rglob("*.h"))))
    return declared, used


@pytest.mark.parametrize("group", SUBSET)
def test_every_name_is_declared_and_used(group: str) -> None:
    declared, used = words()
    assert [name for name in SUBSET[group] if name not in declared] == []
    assert [name for name in SUBSET[group] if name not in used] == []


def test_no_helper_leaks_under_a_vendor_name() -> None:
    """What a kernel could call by accident: names of the API's shape that the API does not have."""
    declared, _ = words()
    assert [
        name for name in declared if re.fullmatch(r"asc_\w+_(at|to|impl)", name) and not name.endswith("_v2_impl")
    ] == []


def probe(source: str, kernel: str, data: np.ndarray, count: int, width: int = 256) -> np.ndarray:
    """`count` results of `width` bytes of a probe fed with 2 KiB of `data`."""
    given, out = torch.zeros(2048, dtype=torch.uint8), torch.zeros(count * width, dtype=torch.uint8)
    raw = np.ascontiguousarray(data).view(np.uint8).ravel()
    given[: raw.size] = torch.from_numpy(raw)
    run(source, kernel, [given], [out], [count * width])
    return out.numpy().reshape(count, width)


def same(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(found, expected)


CODES = np.random.default_rng(1).permutation(256).astype(np.uint8)


def test_widening_takes_its_part() -> None:
    found = probe("subset_convert", "widened", CODES, 18).view(np.float32)
    halves = CODES.view(np.uint16)
    wanted = [formats.decode(name, halves[part::2]) for name in ("bf16", "f16") for part in (0, 1)]
    wanted += [CODES.view(np.int16)[part::2].astype(np.float64) for part in (0, 1)]
    wanted += [formats.decode(name, CODES[part::4]) for name in ("e4m3", "e5m2", "hif8") for part in range(4)]
    with np.errstate(invalid="ignore"):  # signalling NaN
        same(found, np.array(wanted).astype(np.float32))


def test_widening_of_integers_and_of_pairs() -> None:
    found = probe("subset_convert", "widened_integers", CODES, 24)
    wanted = [CODES.view(f"{kind}2")[part::2].astype(f"{kind}4") for kind in ("i", "u") for part in (0, 1)]
    wanted += [CODES.view(f"{kind}1")[part::2].astype(f"{kind}2") for kind in ("u", "i") for part in (0, 1)]
    wanted += [CODES.view(f"{kind}1")[part::4].astype(f"{kind}4") for kind in ("u", "i") for part in range(4)]
    same(found[:16], np.array([np.ascontiguousarray(w).view(np.uint8) for w in wanted]))
    for row, (name, part) in enumerate(itertools.product(("e2m1", "e1m2"), range(4))):
        pairs = CODES[part::4]
        values = np.stack([formats.decode(name, pairs & 15), formats.decode(name, pairs >> 4)], 1).ravel()
        same(formats.decode("bf16", found[16 + row].view(np.uint16)), values)


def hard_values(name: str, seed: int) -> np.ndarray:
    """64 floats: values of the format, middles between neighbours, what lies just beside them, overflow."""
    r = np.random.default_rng(seed)
    values, _ = formats.tables(name)
    i = r.integers(0, len(values) - 1, 48)
    middle = ((values[i] + values[i + 1]) / 2).astype(np.float32)
    middle[16:32], middle[32:48] = (
        np.nextafter(middle[16:32], np.float32(np.inf)),
        np.nextafter(middle[32:48], np.float32(0)),
    )
    with np.errstate(over="ignore"):
        ends = np.array([0, values[-1], values[-1] * 1.01, values[1] / 2, values[1] / 4, 1, 1.5, np.inf], np.float32)
    x = np.concatenate([middle, ends, -ends]).astype(np.float32)
    x[:48] *= np.where(r.random(48) < 0.5, -1, 1)
    return x


@pytest.mark.parametrize("seed", range(3))
def test_narrowing_to_16_bits(seed: int) -> None:
    for half, name in enumerate(("bf16", "f16")):
        x = hard_values(name, seed)
        found = probe("subset_convert", "narrowed16", x, 50).view(np.uint16)[25 * half : 25 * half + 25]
        row = 0
        for mode in MODES:
            for saturate, part in ((False, 0), (False, 1), (True, 0), (True, 1), (False, 1)):
                wanted = np.zeros(128, np.uint16)
                wanted[part::2] = formats.encode(name, x, mode, saturate)
                same(found[row], wanted)
                row += 1


@pytest.mark.parametrize("seed", range(3))
def test_narrowing_to_8_bits(seed: int) -> None:
    for family, (name, mode) in enumerate((("e4m3", "rn"), ("e5m2", "rn"), ("hif8", "rna"))):
        x = hard_values(name, seed)
        found = probe("subset_convert", "narrowed8", x, 24)[8 * family : 8 * family + 8]
        for row, (saturate, part) in enumerate(itertools.product((False, True), range(4))):
            wanted = np.zeros(256, np.uint8)
            wanted[part::4] = formats.encode(name, x, mode, saturate)
            same(found[row], wanted)


def test_narrowing_to_4_bits() -> None:
    r = np.random.default_rng(2)
    for family, name in enumerate(("e2m1", "e1m2")):
        x = np.concatenate([np.arange(-32, 32) / 8, r.normal(size=64) * 4]).astype(np.float32)
        bits = x.view(np.uint32) >> 16  # bf16 values: the lower half is dropped
        x = (bits << 16).astype(np.uint32).view(np.float32)
        found = probe("subset_convert", "narrowed4", bits.astype(np.uint16), 24)[12 * family : 12 * family + 12]
        for row, (mode, part) in enumerate(itertools.product(("rn", "rna", "rz"), range(4))):
            codes, wanted = formats.encode(name, x, mode, True), np.zeros(256, np.uint8)
            wanted[part::4] = codes[::2] | codes[1::2] << 4
            same(found[row], wanted)


def test_floats_to_integers() -> None:
    ties = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1e9 + 0.5, 3e9, -3e9, 40000.5, -40000.5, 32767.5, -32768.5]
    x = np.concatenate([ties, np.random.default_rng(3).normal(size=64 - len(ties)) * 100]).astype(np.float32)
    found = probe("subset_convert", "to_integers", x, 30)
    for i, mode in enumerate(MODES):
        for row in (6 * i, 6 * i + 1):
            same(found[row].view(np.int32), formats.to_integer(x, mode, 32))
        for row, part in enumerate((0, 1, 0, 1)):
            wanted = np.zeros(128, np.int16)
            wanted[part::2] = formats.to_integer(x, mode, 16)
            same(found[6 * i + 2 + row].view(np.int16), wanted)


def test_integers_to_floats_and_to_fewer_bits() -> None:
    r = np.random.default_rng(4)
    x = np.concatenate([r.integers(-(2**31), 2**31, 58), [2**24 + 1, 2**24 + 3, -(2**24) - 1, 2**31 - 1, -(2**31), 0]])
    x = x.astype(np.int32)
    found = probe("subset_convert", "from_integers", x, 15)
    near = x.astype(np.float32)  # ties to even
    below = np.where(near.astype(np.float64) > x, np.nextafter(near, np.float32(-np.inf)), near)
    above = np.where(near.astype(np.float64) < x, np.nextafter(near, np.float32(np.inf)), near)
    away = np.where(above.astype(np.float64) - x == x - below.astype(np.float64), np.where(x > 0, above, below), near)
    toward = np.where(x > 0, below, above)
    for row, wanted in enumerate((near, away, below, above, toward)):
        same(found[row].view(np.float32), wanted)
    for part in (0, 1):
        wide = np.zeros(128, np.int16)
        wide[part::2] = x.astype(np.int16)
        same(found[5 + part].view(np.int16), wide)
    for row in range(8):
        bytes_ = np.zeros(256, np.uint8)
        bytes_[row % 4 :: 4] = x.astype(np.uint8)
        same(found[7 + row], bytes_)


def test_loads() -> None:
    x = np.random.default_rng(5).normal(size=512).astype(np.float32)
    h, c = x.view(np.uint16), x.view(np.uint8)
    raw = probe("subset_vector", "loads", x, 161, 32).ravel()
    found = raw[: 18 * 256].reshape(18, 256)
    f = found.view(np.float32)
    same(f[0], np.full(64, x[3]))
    same(f[1], np.full(64, x[5] + x[7]))
    same(f[2], np.tile(x[8:16], 8))
    same(f[3], np.tile(x[16:24], 8))
    same(f[4], np.repeat(x[32:40], 8))
    same(f[5], np.repeat(x[40:48], 8))
    same(f[6], np.concatenate([x[8 + 16 * b : 16 + 16 * b] for b in range(8)]))
    same(f[7], x[0:128:2])
    same(f[8], x[128:192])
    u = found.view(np.uint16)
    same(u[9], np.repeat(h[16:80], 2))
    same(u[10], np.repeat(h[0:64], 2))
    same(u[11], h[64:320:2])
    same(u[12], np.stack([h[0:64], np.zeros(64, np.uint16)], 1).ravel())
    same(u[13], np.stack([h[32:96], np.zeros(64, np.uint16)], 1).ravel())
    spread = np.zeros((3, 64, 4), np.uint8)
    spread[:, :, 0] = c[0:64], c[64:128], c[128:192]
    same(found[14:17], spread.reshape(3, 256))
    same(f[17], x[3:67])
    tail = raw[18 * 256 :]
    same(tail[:512].view(np.float32), np.concatenate([x[5:69], x[69:133]]))
    same(tail[512:544], c[:32])


def test_stores() -> None:
    x = np.random.default_rng(6).integers(0, 2**32, 128, dtype=np.uint64).astype(np.uint32)
    found = probe("subset_vector", "stores", x, 1, 1024 + 32 + 128 + 64 + 64)[0]
    a, b = x[:64], x[64:]
    same(found[:512].view(np.uint32), np.stack([a, b], 1).ravel())
    same(found[512:1024].view(np.uint32), np.stack([b, a], 1).ravel())
    same(found[1024:1056].view(np.uint32), np.full(8, a[0]))
    same(found[1056:1184].view(np.uint16), a.astype(np.uint16))
    same(found[1184:1248], a.astype(np.uint8))
    same(found[1248:], a.astype(np.uint8))


def test_arithmetic() -> None:
    x = np.random.default_rng(7).normal(size=192).astype(np.float32)
    a, b, c = (part.astype(np.float64) for part in x.reshape(3, 64))
    found = probe("subset_vector", "arithmetic", x, 21)
    f = found.view(np.float32)
    for row, wanted in enumerate((a * 0.5 + c, a * b + c, a * b + c, np.maximum(a, 0), np.abs(a))):
        same(f[row], wanted.astype(np.float32))
    np.testing.assert_allclose(f[5], np.log(np.abs(a)), rtol=1e-6)
    same(f[6], (-a).astype(np.float32))
    same(f[7], np.minimum(a, b).astype(np.float32))
    u, v = (part.astype(np.uint64) for part in x.view(np.uint32)[:128].reshape(2, 64))
    s = x.view(np.int32)[:64].astype(np.int64)
    low, n = (1 << 32) - 1, np.arange(64)
    wanted = [u * v, (u * v) >> 32, u + v, u + ((u + v) >> 32), u - v, u - (u < v)]
    for row, values in enumerate(wanted):
        same(found[8 + row].view(np.uint32).astype(np.uint64), values & low)
    left = np.where(n < 32, (s << np.minimum(n, 31)) & low, 0)
    wanted = [left, (s >> np.minimum(n, 31)) & low, ~s & low, (s ^ n) & low]
    for row, values in enumerate(wanted):
        same(found[14 + row].view(np.uint32).astype(np.int64), values)
    i = found[18:].view(np.int32)
    assert (i[0, 0], i[0, 1:].any()) == (s.min(), False)
    same(i[1], np.concatenate([s.reshape(8, 8).min(1), np.zeros(56, np.int64)]))
    assert i[2, 0] == x.view(np.int16)[:128].astype(np.int64).sum()


def test_permutations() -> None:
    x = np.random.default_rng(8).normal(size=64).astype(np.float32)
    found = probe("subset_vector", "rearranged", x, 9)
    u, h = x.view(np.uint32), x.view(np.uint16)
    same(found[0].view(np.float32), np.full(64, x[63]))
    same(found[1].view(np.float32), np.where(np.arange(64) < 16, np.float32(7), x))
    for row, at in ((2, 0), (3, 0), (4, 64)):
        wanted = np.zeros(128, np.uint16)
        wanted[at : at + 64] = u.astype(np.uint16)
        same(found[row].view(np.uint16), wanted)
    same(found[5].view(np.uint32), h[:64].astype(np.uint32))
    same(found[6].view(np.uint32), h[64:].astype(np.uint32))
    same(found[7].view(np.int32), 5 - np.arange(64))
    same(found[8], found[1])


def test_masks() -> None:
    x = np.random.default_rng(9).integers(-1, 2, 128).astype(np.float32)
    found = np.unpackbits(probe("subset_vector", "masks", x, 18, 32), bitorder="little").reshape(18, 256).astype(bool)
    a, b = x[:64], x[64:]

    def lanes(bits: np.ndarray) -> np.ndarray:
        wide = np.zeros(256, bool)
        wide[::4] = bits
        return wide

    m, n, low = lanes(a >= b), lanes(a <= b), lanes(np.arange(64) < 32)
    full = np.zeros(256, bool)
    wanted = [m, n, lanes(a != b), lanes(a <= 0), lanes(a != 0), m & n, (m | n) & low, m ^ n, lanes(~(a >= b)), m & low]
    wanted += [np.where(low, m, n)]
    for source in (m[:128], m[128:]):
        spread = full.copy()
        spread[::2] = source
        wanted.append(spread)
    for at in (0, 128):
        packed = full.copy()
        packed[at : at + 128] = m[::2]
        wanted.append(packed)
    thirds = full.copy()
    thirds[::2] = np.arange(128) % 3 == 0
    wanted += [thirds, np.arange(256) < 64, full]
    for row, bits in enumerate(wanted):
        same(found[row], bits)


TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int32)


@pytest.mark.parametrize("kind", range(len(TYPES)))
def test_atomic_modes(kind: int) -> None:
    dtype, g = TYPES[kind], torch.Generator().manual_seed(kind)
    lanes = 256 // dtype.itemsize
    if dtype.is_floating_point:
        a, b = torch.randn(2, lanes, generator=g).to(dtype)
    else:
        a, b = torch.randint(-50, 50, (2, lanes), generator=g).to(dtype)
    out = torch.zeros(4, lanes).to(dtype)
    run("subset_vector", "atomics", [torch.cat([a, b]).view(torch.uint8)], [out.view(torch.uint8)], [kind])
    assert torch.equal(out[0], a + b)
    assert torch.equal(out[1], torch.maximum(a, b))
    assert torch.equal(out[2], torch.minimum(a, b))
    assert torch.equal(out[3], a)


def test_who_a_core_is() -> None:
    out = torch.zeros(6, 16, dtype=torch.int32)
    run("subset_core", "identity", [], [out], grid=3)
    for block, side in itertools.product(range(3), range(2)):
        assert out[2 * block + side, :9].tolist() == [block, 3, side, 2, 256, 1, 2 * block + side, 3, 40 + side]


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_scalar_waits_and_outer_loops(sim: SimDriver, policy: int) -> None:
    sim.set_option("policy", policy)
    x, out = torch.arange(1024).remainder(251).to(torch.uint8), torch.full((1024,), 255, dtype=torch.uint8)
    run("subset_core", "copied_on", [x], [out])
    wanted = torch.full((1024,), 255, dtype=torch.uint8)
    packed = torch.cat([x[256 * i : 256 * i + 128] for i in range(4)])
    for two, one in itertools.product(range(2), range(2)):
        at, to = 256 * two + 128 * one, 512 * two + 64 * one
        wanted[to : to + 32] = packed[at : at + 32]
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_cores_meet(sim: SimDriver, policy: int) -> None:
    sim.set_option("policy", policy)
    x, out = torch.arange(512).remainder(251).to(torch.uint8), torch.zeros(512, dtype=torch.uint8)
    run("subset_core", "meetings", [x], [out])
    assert torch.equal(out, torch.cat([x[256:], x[:256]]))


@pytest.mark.parametrize("direction", [0, 1])
def test_turned_operand_and_a_result_that_stays_on_chip(direction: int) -> None:
    m, k, n, g = 32, 48, 64, torch.Generator().manual_seed(direction)
    a, b = torch.randn(k, m, generator=g).half(), torch.randn(n, k, generator=g).half()
    blocks = torch.eye(n).reshape(n, n // 16, 16).permute(1, 0, 2).contiguous().bfloat16()
    out = torch.empty(m, n)
    run("subset_core", "product_of_turned", [a, b, blocks], [out], [m, k, n, direction])
    assert torch.equal(out, (a.float().t() @ b.float().t()).bfloat16().float())


def test_roundings_of_hf32() -> None:
    tie = 1 + 2**-11  # halfway between two values of 10 mantissa bits
    a, b = torch.full((16, 8), tie), torch.zeros(16, 8)
    b[:, 0] = 1
    for mode, wanted in ((0, 1 + 2**-10), (1, 1.0), (2, tie)):
        out = torch.empty(16, 16)
        run("subset_core", "hf32_modes", [a, b], [out], [mode])
        assert (out == wanted).all()


REFUSED = {
    "repeats": "asc_set_l3d_rpt_b.*one repeat",
    "half_bias": "asc_copy_l12bt.*not modelled",
    "channel_padding": "asc_copy_gm2l1.*not modelled",
    "small_c0": "asc_copy_gm2l1_nd2nz.*small-C0",
    "scalar_relu": "ReLU.*not modelled",
    "hybrid_rounding": "quantisation mode.*not modelled",
    "assertion": r"t\.v\[0\] == 3 does not hold: v\[0\] is 5",
}


@pytest.mark.parametrize("kernel", REFUSED)
def test_what_is_not_modelled_says_so(kernel: str) -> None:
    out = torch.zeros(1024, dtype=torch.uint8)
    with pytest.raises(DriverError, match=REFUSED[kernel]) as caught:
        run("subset_refused", kernel, [], [out], [5])
    assert f"{kernel}, block 0" in str(caught.value)
    assert "subset_refused.asc:" in str(caught.value)
