"""Inputs of the quantisation ops: shapes round every block edge, edge values, strided views, and calls that must raise.

Data rules: "randn" has ordinary values in rows of very different size; "edges" cycles through ties, saturation, zeros
of both signs, subnormals, huge values; "nonfinite" adds NaN and infinities, one per block at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.registry import Case, ErrorCase

SHAPES = ((1, 1), (1, 128), (3, 127), (5, 129), (2, 3, 33), (130, 40), (7, 576), (0, 64), (4, 0), (65, 257))
EVEN_SHAPES = ((1, 2), (1, 32), (3, 126), (5, 130), (2, 3, 34), (34, 40), (7, 576), (0, 64), (4, 0), (65, 258))
BLOCKS = ((1, 128), (1, 32), (128, 128), (32, 32))
FP4_BLOCKS = ((1, 32), (1, 16), (32, 32))
EDGES = (
    0.0, -0.0, 447.0, 448.0, 463.0, 464.0, 465.0, 480.0, -448.0, -464.0, 1e-45, 2.0**-9, 2.0**-10, 3 * 2.0**-10,
    0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -5.0, 1e-4, 1e-30, 3e38, 1.0625, 17.0, 2.0**-127, 1e4, 1.1875,
)
DATA = ("randn", "edges", "nonfinite")
VIEWS = ("plain", "transposed", "step", "expanded", "offset")


def short(dtype: torch.dtype) -> str:
    """"float32" of torch.float32."""
    return str(dtype).removeprefix("torch.")


def values(kind: str, shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Data of one of the kinds above."""
    x = torch.randn(tuple(shape), generator=generator)
    if kind == "edges":
        cycle = torch.tensor(EDGES).repeat(-(-max(x.numel(), 1) // len(EDGES)))[: x.numel()]
        x = cycle.reshape(x.shape)
    else:
        x = x * torch.exp2(torch.randint(-12, 12, (*shape[:-1], 1), generator=generator).float())
        x[..., :: max(shape[-2] // 2, 1), : shape[-1] // 2] = 0.0
    if kind == "nonfinite" and x.numel():
        bad = torch.tensor([torch.nan, torch.inf, -torch.inf])
        place = torch.randint(0, x.numel(), (3,), generator=generator)
        x.view(-1)[place] = bad
    return x.to(dtype)


def view(kind: str, x: torch.Tensor) -> torch.Tensor:
    """The same values behind other strides."""
    if kind == "transposed":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == "step":
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan).to(x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if kind == "expanded":
        return x[..., :1, :].expand(x.shape)
    if kind == "offset":
        flat = torch.full((x.numel() + 1,), torch.nan).to(x.dtype)
        flat[1:] = x.flatten()
        return flat[1:].view(x.shape)
    return x


Make = Callable[[torch.Generator], dict[str, Any]]


def _case(op: str, params: dict[str, Any], make: Make, refs: tuple[str, ...] = (), edge: bool = False) -> Case:
    return Case(op, params, make, frozenset({"quick", "edge"} if edge else {"quick"}), refs=refs)


def _quantizer_args(
    shape: Sequence[int], dtype: torch.dtype, data: str, strides: str, plain: dict[str, Any], generator: torch.Generator
) -> dict[str, Any]:
    return {"x": view(strides, values(data, shape, dtype, generator)), **plain}


def fp8_args(generator: torch.Generator) -> dict[str, Any]:
    """A legal call of quantize_fp8."""
    plain = {"block": (1, 128), "scale_dtype": "f32", "amax_floor": 1e-4}
    return _quantizer_args((4, 256), torch.float32, "randn", "plain", plain, generator)


def mxfp4_args(generator: torch.Generator) -> dict[str, Any]:
    """A legal call of quantize_mxfp4."""
    return _quantizer_args((4, 256), torch.float32, "randn", "plain", {"block": (1, 32)}, generator)


def _sweep(op: str, shapes: Sequence[Sequence[int]], plains: Sequence[dict[str, Any]]) -> Iterable[Case]:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for n, plain in enumerate(plains):
        names = {key: "x".join(map(str, val)) if isinstance(val, tuple) else val for key, val in plain.items()}
        for i, shape in enumerate(shapes):
            for j, data in enumerate(DATA if i % 3 == n % 3 else DATA[:1]):
                dtype = dtypes[(n + i + j) % 3]
                params = {"shape": "x".join(map(str, shape)), "dtype": short(dtype), "data": data, **names}
                refs = {"edges": ("C41", "C42"), "nonfinite": ("C42",)}.get(data, ("C32",))
                make = partial(_quantizer_args, shape, dtype, data, "plain", plain)
                yield _case(op, params, make, refs, edge=0 in shape or data != "randn")
        for strides in VIEWS[1:]:
            params = {"shape": "6x130", "dtype": "float32", "data": "randn", "view": strides, **names}
            make = partial(_quantizer_args, (6, 130), torch.float32, "randn", strides, plain)
            yield _case(op, params, make, ("C35",))


def fp8_cases(op: str) -> Iterable[Case]:
    """Block shapes x scale types x floors x data, and the timed shapes."""
    plains = [
        {"block": block, "scale_dtype": scale, "amax_floor": floor}
        for block in BLOCKS for scale in ("f32", "ue8m0") for floor in ((1e-4,) if block[0] > 1 else (1e-4, 0.0))
    ]
    yield from _sweep(op, SHAPES, plains)
    for rows in (512, 8192):
        plain = {"block": (1, 128), "scale_dtype": "f32", "amax_floor": 1e-4}
        params = {"rows": rows, "cols": 7168, "block": "1x128", "scale_dtype": "f32", "dtype": "bfloat16"}
        make = partial(_quantizer_args, (rows, 7168), torch.bfloat16, "randn", "plain", plain)
        yield Case(op, params, make, frozenset({"bench"}))


def mxfp4_cases(op: str) -> Iterable[Case]:
    """As `fp8_cases` for e2m1."""
    yield from _sweep(op, EVEN_SHAPES, [{"block": block} for block in FP4_BLOCKS])
    params = {"rows": 512, "cols": 7168, "block": "1x32", "dtype": "bfloat16"}
    make = partial(_quantizer_args, (512, 7168), torch.bfloat16, "randn", "plain", {"block": (1, 32)})
    yield Case(op, params, make, frozenset({"bench"}))


def quantizer_errors(op: str, good: Make) -> Iterable[ErrorCase]:
    """Calls that both quantisers must refuse."""
    changes: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
        ("rank", {"x": torch.ones(8)}, ("x", "2 dimensions")),
        ("dtype", {"x": torch.ones(2, 8).int()}, ("x", "int32")),
        ("block-zero", {"block": (0, 32)}, ("block", "0")),
        ("block-rank", {"block": (32,)}, ("block", "two")),
        ("not-a-tensor", {"x": [[1.0]]}, ("x", "Tensor")),
    )
    for name, change, mentions in changes:
        yield ErrorCase(op, name, partial(changed, good, change), InvalidArgument, mentions)


def changed(good: Make, change: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Arguments of a good call with some replaced."""
    return good(generator) | change


def _random_quantized(
    shape: Sequence[int], block: tuple[int, int], scale_dtype: str, element: str, strides: str, dtype: torch.dtype,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Random bytes: every code, NaN payloads and NaN scales among them."""
    data = torch.randint(0, 256, tuple(shape), generator=generator, dtype=torch.uint8)
    cols = shape[-1] * (2 if element == "e2m1" else 1)
    grid = (*shape[:-2], -(-shape[-2] // block[0]), -(-cols // block[1]))
    if scale_dtype == "f32":
        scale = torch.randn(grid, generator=generator).exp()
    else:
        scale = torch.randint(0, 256, grid, generator=generator, dtype=torch.uint8)
    if strides != "plain":
        data = view(strides, data)
        scale = view(strides, scale)
    return {
        "data": data if element == "e2m1" else data.view(torch.float8_e4m3fn),
        "scale": scale.view(torch.float8_e4m3fn) if scale_dtype == "e4m3" else scale,
        "block": block, "scale_dtype": scale_dtype, "format": element, "dtype": dtype,
    }


def dequantize_args(generator: torch.Generator) -> dict[str, Any]:
    """A legal call of dequantize."""
    return _random_quantized((4, 256), (1, 128), "f32", "e4m3", "plain", torch.float32, generator)


def dequantize_cases(op: str) -> Iterable[Case]:
    """Every format the ops use, ragged and strided."""
    recipes = (
        ((1, 128), "f32", "e4m3"), ((128, 128), "f32", "e4m3"), ((1, 32), "ue8m0", "e4m3"), ((32, 32), "ue8m0", "e4m3"),
        ((1, 32), "ue8m0", "e2m1"), ((1, 16), "e4m3", "e2m1"), ((1, 32), "f32", "e2m1"),
    )
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    shapes = ((1, 1), (1, 64), (3, 127), (2, 3, 33), (130, 129), (0, 64), (4, 0))
    for n, (block, scale_dtype, element) in enumerate(recipes):
        names = {"format": element, "block": f"{block[0]}x{block[1]}", "scale_dtype": scale_dtype}
        for i, shape in enumerate(shapes):
            dtype = dtypes[(n + i) % 3]
            params: dict[str, Any] = {"shape": "x".join(map(str, shape)), **names, "dtype": short(dtype)}
            make = partial(_random_quantized, shape, block, scale_dtype, element, "plain", dtype)
            yield _case(op, params, make, edge=0 in shape)
        for strides in ("transposed", "expanded"):
            params = {"shape": "6x64", **names, "view": strides}
            make = partial(_random_quantized, (6, 64), block, scale_dtype, element, strides, torch.float32)
            yield _case(op, params, make, ("C35",))
    params = {"rows": 4096, "cols": 7168, "format": "e4m3", "block": "128x128", "scale_dtype": "f32"}
    make = partial(_random_quantized, (4096, 7168), (128, 128), "f32", "e4m3", "plain", torch.bfloat16)
    yield Case(op, params, make, frozenset({"bench"}))


def _pack_args(
    shape: Sequence[int], layout: str, block_rows: int, mn: int, rows: Sequence[int] | int | None, strides: str,
    generator: torch.Generator,
) -> dict[str, Any]:
    exponent = torch.randint(-127, 128, tuple(shape), generator=generator)
    scale = view(strides, torch.ldexp(torch.ones(tuple(shape), dtype=torch.float64), exponent).float())
    counts = None if rows is None else torch.tensor(rows)
    return {"scale": scale, "layout": layout, "block_rows": block_rows, "mn": mn, "rows": counts}


def pack_args(generator: torch.Generator) -> dict[str, Any]:
    """A legal call of pack_scales."""
    return _pack_args((4, 3), "ue8m0x4_mn", 1, 4, None, "plain", generator)


def pack_cases(op: str) -> Iterable[Case]:
    """Both layouts, ragged words, repeated rows, counts that leave padding."""
    configs: tuple[tuple[tuple[int, ...], int, int, Sequence[int] | int | None], ...] = (
        ((1, 1), 1, 1, None), ((5, 9), 1, 5, None), ((8, 4), 1, 7, None), ((0, 4), 1, 0, None), ((4, 0), 1, 4, None),
        ((2, 5), 128, 200, None), ((3, 2), 32, 96, None), ((6, 5), 1, 6, 4), ((6, 5), 1, 6, 99),
        ((3, 6, 4), 1, 6, (0, -3, 6)), ((2, 3, 5), 2, 6, (3, 5)), ((2, 3, 5), 1, 3, None),
    )
    for layout in ("f32_mn", "ue8m0x4_mn"):
        for shape, step, mn, rows in configs:
            params = {"scale": "x".join(map(str, shape)), "layout": layout, "block_rows": step, "mn": mn, "rows": rows}
            make = partial(_pack_args, shape, layout, step, mn, rows, "plain")
            yield _case(op, params, make, ("C31",) if rows is not None else (), edge=0 in shape or rows is not None)
        for strides in VIEWS[1:]:
            params = {"scale": "6x5", "layout": layout, "view": strides}
            yield _case(op, params, partial(_pack_args, (6, 5), layout, 1, 6, None, strides), ("C35",))


def _bad_scale(value: float, generator: torch.Generator) -> dict[str, Any]:
    args = pack_args(generator)
    args["scale"][2, 1] = value
    return args


def pack_errors(op: str) -> Iterable[ErrorCase]:
    """Metadata errors, and valid scales that no exponent byte can hold."""
    changes: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
        ("layout", {"layout": "row"}, ("layout", "row")),
        ("dtype", {"scale": torch.ones(4, 3).half()}, ("scale", "float16")),
        ("rank", {"scale": torch.ones(4)}, ("scale", "2 dimensions")),
        ("mn", {"mn": 5}, ("mn", "5", "4")),
        ("block-rows", {"block_rows": 0}, ("block_rows", "0")),
        ("rows-dtype", {"rows": torch.tensor(1.0)}, ("rows", "float32")),
        ("rows-shape", {"rows": torch.tensor([1])}, ("rows",)),
    )
    for name, change, mentions in changes:
        yield ErrorCase(op, name, partial(changed, pack_args, change), InvalidArgument, mentions)
    for value in (0.3, 1e-45, 0.0, -1.0, torch.nan, torch.inf):
        make = partial(_bad_scale, value)
        yield ErrorCase(op, f"value{value}", make, InvalidArgument, ("row 2", "power of two"), validate=True)
