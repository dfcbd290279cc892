"""Parameters, checks and the float64 reference that the sampling specs share.

The reference works row by row with plain sorting, independent of the tensor code in `adjust` and `distribution`.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.registry import Call, Kind, Param
from deepinfer.registry.spec import Args

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
REALS = (torch.float32, torch.float64)
PER_ROW = ("temperature", "top_p", "min_p", "repetition", "frequency", "presence")
PER_ROW_INDEX = ("top_k", "prompt_lens", "row_map", "seeds", "sample_index", "positions")
OPTIONAL = Kind.OPT_TENSOR

LOGITS = (
    Param("logits"), Param("temperature", OPTIONAL), Param("top_k", OPTIONAL), Param("top_p", OPTIONAL),
    Param("min_p", OPTIONAL), Param("bias_ids", OPTIONAL), Param("bias_values", OPTIONAL), Param("history", OPTIONAL),
    Param("prompt_lens", OPTIONAL), Param("repetition", OPTIONAL), Param("frequency", OPTIONAL),
    Param("presence", OPTIONAL), Param("banned_ids", OPTIONAL), Param("mask", OPTIONAL), Param("row_map", OPTIONAL),
)


def check_logits(op: str, call: Call) -> None:
    """Shapes and dtypes of `LOGITS` (and of the random stream's arguments where the op has them)."""
    logits = call["logits"]
    checks.rank(op, "logits", logits, 2, "[n,V]")
    checks.dtype(op, "logits", logits, DTYPES)
    rows = logits.shape[0]
    for name in PER_ROW + PER_ROW_INDEX:
        meta = call.args.get(name)
        if meta is not None:
            checks.shape(op, name, meta, (rows,), "[n]")
            checks.dtype(op, name, meta, REALS if name in PER_ROW else checks.INDEX_DTYPES)
    for name in ("bias_ids", "bias_values", "history", "banned_ids"):
        meta = call[name]
        if meta is not None:
            checks.rank(op, name, meta, 2, "[n,*]")
            checks.dim(op, name, meta, 0, rows, "= n")
            checks.dtype(op, name, meta, REALS if name == "bias_values" else checks.INDEX_DTYPES)
    _check_pairs(op, call)
    check_mask(op, call["mask"], call["row_map"], logits.shape)


def _check_pairs(op: str, call: Call) -> None:
    ids, values = call["bias_ids"], call["bias_values"]
    if (ids is None) != (values is None):
        missing = "bias_ids" if ids is None else "bias_values"
        raise invalid(f"{op}: {missing}", None, "must be given: bias_ids and bias_values come together")
    if ids is not None:
        checks.shape(op, "bias_values", values, ids.shape, "= shape of bias_ids")
    for name in ("prompt_lens", "repetition", "frequency", "presence"):
        if call[name] is not None and call["history"] is None:
            raise invalid(f"{op}: history", None, f"must be given with {name}")


def check_mask(op: str, mask: object, row_map: object, shape: tuple[int, ...]) -> None:
    """A packed token mask [m, ceil(V/32)] int32 and its row map."""
    if mask is None:
        if row_map is not None:
            raise invalid(f"{op}: mask", None, "must be given with row_map")
        return
    checks.rank(op, "mask", mask, 2, "[m,ceil(V/32)]")  # type: ignore[arg-type]
    checks.dtype(op, "mask", mask, (torch.int32,))  # type: ignore[arg-type]
    checks.dim(op, "mask", mask, 1, -(-shape[1] // 32), "= ceil(V/32)")  # type: ignore[arg-type]
    if row_map is None:
        checks.dim(op, "mask", mask, 0, shape[0], "= n (or give row_map)")  # type: ignore[arg-type]


def number_of(args: Args, name: str, row: int, default: float) -> float:
    """Parameter `name` of a row, or the default where it is absent."""
    return default if args.get(name) is None else float(args[name][row])


def exact_adjusted(args: Args, row: int) -> list[float]:
    """float64 logits of a row after bias, penalties, bans and mask, by plain loops."""
    x: list[float] = args["logits"][row].double().tolist()
    vocab = range(len(x))
    if args["bias_ids"] is not None:
        for token, value in zip(args["bias_ids"][row].tolist(), args["bias_values"][row].tolist(), strict=True):
            if token in vocab:
                x[token] += value
    if args["history"] is not None:
        _exact_penalties(x, args, row)
    for token in [] if args["banned_ids"] is None else args["banned_ids"][row].tolist():
        if token in vocab:
            x[token] = -math.inf
    if args["mask"] is not None:
        source = row if args["row_map"] is None else int(args["row_map"][row])
        if 0 <= source < args["mask"].shape[0]:
            words = args["mask"][source].tolist()
            x = [value if words[v // 32] >> v % 32 & 1 else -math.inf for v, value in enumerate(x)]
    return x


def _exact_penalties(x: list[float], args: Args, row: int) -> None:
    tokens = args["history"][row].tolist()
    start = int(number_of(args, "prompt_lens", row, 0))
    repetition = number_of(args, "repetition", row, 1.0)
    for token in {t for t in tokens if 0 <= t < len(x)}:
        if repetition > 0:
            x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
    generated = [t for place, t in enumerate(tokens) if place >= start and 0 <= t < len(x)]
    for token in set(generated):
        count = generated.count(token)
        x[token] -= number_of(args, "frequency", row, 0.0) * count + number_of(args, "presence", row, 0.0)


def exact_log_probs(args: Args, row: int) -> tuple[list[float], list[float]] | None:
    """(adjusted logits, log-probabilities after temperature, top-k, top-p, min-p) of a row; None if not valid.

    An arg-max row has log-probability 0 at its token.
    """
    x = exact_adjusted(args, row)
    top = max(x, default=-math.inf)
    if any(value != value for value in x) or not math.isfinite(top):
        return None
    temperature = number_of(args, "temperature", row, 1.0)
    if not temperature > 0:
        winner = x.index(top)
        return x, [0.0 if v == winner else -math.inf for v in range(len(x))]
    scaled = [(value - top) / temperature if value > -math.inf else value for value in x]
    order = sorted((v for v in range(len(x)) if x[v] > -math.inf), key=lambda v: (-x[v], v))
    kept = _exact_cut(order, [math.exp(value) for value in scaled], args, row)
    total = math.log(math.fsum(math.exp(scaled[v]) for v in kept))
    chosen = set(kept)
    return x, [scaled[v] - total if v in chosen else -math.inf for v in range(len(x))]


def _exact_cut(order: list[int], weight: list[float], args: Args, row: int) -> list[int]:
    k, p, m = (number_of(args, "top_k", row, 0), number_of(args, "top_p", row, 1.0), number_of(args, "min_p", row, 0.0))
    kept = order[: int(k)] if k > 0 else order
    if p < 1:
        mass, before = math.fsum(weight[v] for v in kept), 0.0
        prefix: list[int] = []
        for v in kept:
            if prefix and before >= p * mass:
                break
            prefix.append(v)
            before += weight[v]
        kept = prefix
    return [v for v in kept if weight[v] >= min(m, 1.0)] if m > 0 else kept


def exact_words(seed: int, sample: int, position: int, purpose: int, block: int) -> list[int]:
    """Four Philox4x32-10 words in plain integers."""
    c = [block, position & 0xFFFFFFFF, purpose, sample & 0xFFFFFFFF]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [p1 >> 32 ^ c[1] ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k1, p0 & 0xFFFFFFFF]
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return c


def exact_unit(word: int) -> float:
    """The float32 steps of `philox.unit`, each rounded by numpy, as a Python float."""
    scaled = np.float32(word) * np.float32(2.0**-32)
    return min(float(scaled + np.float32(2.0**-33)), 1 - 2.0**-24)


def exact_draw(log: list[float], stream: tuple[int, int, int], purpose: int) -> int:
    """arg-max of log + Gumbel noise over the tokens that are not -inf; ties to the lower id."""
    seed, sample, position = stream
    best, winner = -math.inf, -1
    words: list[int] = []
    for token, value in enumerate(log):
        if token % 4 == 0:
            words = []
        if value == -math.inf:
            continue
        words = words or exact_words(seed, sample, position, purpose, token // 4)
        score = value - math.log(-math.log1p(-exact_unit(words[token % 4])))
        if score > best or winner < 0:
            best, winner = score, token
    return winner
