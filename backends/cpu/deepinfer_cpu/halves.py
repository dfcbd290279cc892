"""float32 products with weights that are stored as half-precision numbers, without rounding any of them.

Why: a BLAS packs its right operand in every call, which for one row costs several times the product. FBGEMM (part of
torch on x86) packs once, at load, and keeps 2 bytes per weight. bfloat16 weights have 8 significant bits and fp16 has
11, so after one power of two per matrix nearly every matrix fits without an error; one that does not keeps float32.

    row [K] * 2^-s  ->  sum over k, in order, of row[k] * fp16(w[k, n] * 2^s), float32 multiply-adds

Invariants, all of them found by trying on the machine where it runs (`rooms`), because nothing documents them:
- row i of the result follows from row i and the weights alone. FBGEMM sums over k in order, but has other code for
  tiles of one and two rows, so rows are filled up to a number that is cut into larger tiles (1 and 2 become 3);
- a call runs on one thread; threads that share a product take whole rows. So they change no bit.
Bound: 2 N K bytes of weights for a few rows, 2 M N K FLOPs for many. A value of a row that leaves the normal numbers by
the factor 2^-s (0 <= s <= 96, about 18 for weights around 0.1) loses bits. Weights of 2^16 or more keep float32.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import NoReturn

import torch

from deepinfer.errors import invalid
from deepinfer_cpu.product import Span

LAYOUT = "cpu_f16"
MOST = 240  # rows of one call; the table of `rooms` ends here
FEW = 16  # rows to which one may be filled up at most; more would cost what packing saves
LARGEST = 15  # exponent of the largest scaled weight (fp16 ends below 2^16)
WORTH = 1 << 24  # multiply-adds (0.3 ms of one core) from which a product is shared by threads
FARTHEST = 96  # largest s: rows stay normal numbers
# (N, K): inside one block of K, over several, and a rest of columns.
PROBES = ((16, 96), (40, 256), (72, 1100))


def _absent(*_: object) -> torch.Tensor:
    raise AttributeError("there is no fbgemm_linear_fp16_weight_fp32_activation")


_multiply = getattr(torch, "fbgemm_linear_fp16_weight_fp32_activation", _absent)


@cache
def rooms() -> tuple[tuple[int, ...], str]:
    """(rows that a call of m rows must have, by m up to MOST; "") or ((), why there are no such products)."""
    generator = torch.Generator().manual_seed(0)
    good = [True] * (MOST + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "deprecated": a torch without them takes the branch below
            for n, k in PROBES:
                matrix = torch.fbgemm_pack_gemm_matrix_fp16(torch.randn(n, k, generator=generator, dtype=torch.float32))
                rows = torch.randn(MOST, k, generator=generator, dtype=torch.float32)
                whole = _multiply(rows, matrix, None)
                for m in range(1, MOST):
                    good[m] &= torch.equal(_multiply(rows[MOST - m :], matrix, None), whole[MOST - m :])
    except (AttributeError, RuntimeError) as error:
        return (), f"torch {torch.__version__} has no packed fp16 products here ({str(error).splitlines()[0]})"
    found = [0] * (MOST + 1)
    for m in range(MOST, 0, -1):
        found[m] = m if good[m] else found[m + 1]
    if found[1] > FEW:
        return (), f"packed fp16 products give rows the same bits only from {found[1]} rows on"
    return tuple(found), ""


# What FBGEMM made of a matrix [N, K], 2^-s as a tensor [1], the same as a column that fills one row up, and N.
Matrix = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]


class Halves(torch.Tensor):
    """Packed weights: the tensor holds each matrix's power of two [G]; the matrices hang on it, one per group.

    What torch derives from it (a slice, a clone) has no matrices, and `matrices_of` refuses it. FBGEMM's matrices are
    objects behind a pointer, so they cannot be pickled or copied.
    """

    matrices: tuple[Matrix, ...]
    of: torch.Size

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("weights packed by deep_gmm.prepack cannot be copied or pickled; pack a copy of the plain ones")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__reduce_ex__(memo)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch advises


def pack(weights: torch.Tensor) -> Halves | None:
    """Plain weights [N, K] or [G, N, K], or None where a matrix has no exact fp16 form or no such products exist."""
    table, _ = rooms()
    if not table or not weights.numel():
        return None
    scaled = []
    for matrix in weights if weights.ndim == 3 else weights[None]:
        entry = _scaled(matrix.float())
        if entry is None:
            return None
        scaled.append(entry)
    back = torch.tensor([2.0**-shift for _, shift in scaled], dtype=torch.float32)
    made: Halves = back.as_subclass(Halves)
    columns = [back[g].expand(table[1], 1).clone() for g in range(len(scaled))]
    made.matrices = tuple(
        (torch.fbgemm_pack_gemm_matrix_fp16(matrix), back[g : g + 1], columns[g], matrix.shape[0])
        for g, (matrix, _) in enumerate(scaled)
    )
    made.of = weights.shape
    return made


def matrices_of(packed: torch.Tensor | None, weights: torch.Tensor) -> tuple[Matrix, ...]:
    """The matrices of what `pack` made of `weights`; anything else is refused."""
    found = getattr(packed, "matrices", None)
    if found is None or packed.of != weights.shape:  # type: ignore[union-attr]
        shown = type(packed).__name__ if found is None else list(packed.of)  # type: ignore[union-attr]
        raise invalid("b_packed", shown, f"in layout {LAYOUT!r} it must be what deep_gmm.prepack made of the weights")
    return found  # type: ignore[no-any-return]


def _scaled(matrix: torch.Tensor) -> tuple[torch.Tensor, int] | None:
    """(matrix * 2^s, s) with every value an fp16 number, or None."""
    largest = matrix.abs().max()
    if not bool(largest.isfinite()):
        return None
    exponent = int(torch.frexp(largest).exponent) if float(largest) else LARGEST
    shift = max(0, min(FARTHEST, LARGEST - exponent))  # below 0 the rows would grow, and overflow beside weights of 0
    scaled = torch.ldexp(matrix, torch.tensor(shift))
    unscaled = torch.ldexp(scaled, torch.tensor(-shift))
    exact = torch.equal(scaled.half().float(), scaled) and torch.equal(unscaled, matrix)
    return (scaled.contiguous(), shift) if exact else None


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="deepinfer-cpu")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of the threads


def multiply(rows: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    """rows [M, K] in float32, bfloat16 or float16 times a packed matrix -> float32 [M, N]."""
    packed, back, column, width = matrix
    count = rows.shape[0]
    if count == 1:
        return _multiply(rows * column, packed, None)[:1]
    rows = rows * back
    if count <= MOST and count * rows.shape[1] * width < WORTH:
        return _part(rows, packed)
    return _parts(rows, packed)


def _part(rows: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """One call, for up to MOST rows."""
    count = rows.shape[0]
    room = rooms()[0][count]
    if room == count:
        return _multiply(rows, packed, None)
    rows = torch.cat((rows, rows[: room - count])) if room <= 2 * count else rows.repeat(room, 1)[:room]
    return _multiply(rows, packed, None)[:count]


def _parts(rows: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """Several calls, shared by as many threads as torch may use (it releases the interpreter's lock inside)."""
    threads = torch.get_num_threads()
    parts = torch.split(rows, min(MOST, -(-rows.shape[0] // threads)))
    others: dict[int, Future[torch.Tensor]] = {}
    with suppress(RuntimeError):  # the main thread has ended, and Python starts no more work in pools: all parts here
        for i, part in enumerate(parts):
            if i % threads:
                others[i] = _pool(threads - 1).submit(_part, part, packed)
    made = [others[i].result() if i in others else _part(part, packed) for i, part in enumerate(parts)]
    return made[0] if len(made) == 1 else torch.cat(made)


def grouped(rows: torch.Tensor, matrices: Sequence[Matrix], spans: Sequence[Span]) -> torch.Tensor:
    """float32 [M, N]: the rows of every span times its matrix. The spans tile the rows."""
    if len(spans) == 1:
        return multiply(rows, matrices[spans[0][0]])
    parts = rows.split_with_sizes([high - low for _, low, high in spans])
    return torch.cat([multiply(part, matrices[g]) for part, (g, _, _) in zip(parts, spans, strict=True)])


def scattered(
    rows: torch.Tensor, matrices: Sequence[Matrix], spans: Sequence[Span], result: torch.Tensor
) -> torch.Tensor:
    """Write the rows of every span times its matrix into result [M, N]; other rows keep their bytes."""
    for g, low, high in spans:
        result[low:high] = multiply(rows[low:high], matrices[g])
    return result
