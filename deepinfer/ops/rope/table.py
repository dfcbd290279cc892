"""Tables of cosines and sines, with plain, linear and YaRN scaled frequencies.

Invariants: every step is float32 arithmetic on the CPU whatever the device, because checkpoints were trained with
float32 angles (position * frequency rounded to float32) and a more exact table would be a different model. One
table serves all layers that share theta and scaling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks

OP = "rope.build_table"
KINDS = ("default", "linear", "yarn")
_YARN = {
    "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
    "attention_factor", "truncate",
}
_KEYS = {"default": set[str](), "linear": {"factor"}, "yarn": _YARN}
_COMMON = {"rope_type", "type", "rope_theta"}


def build_table(
    positions_max: int,
    dim: int,
    theta: float,
    *,
    scaling: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Cosines and sines of every position, as `rope.apply` takes them.

    Args:
        positions_max: number of positions P, >= 0; the table covers 0 .. P-1.
        dim: rotated channels, even, >= 0.
        theta: base of the frequencies, > 0: frequency k is theta^(-2k/dim).
        scaling: None, or the `rope_scaling` / `rope_parameters` mapping of a checkpoint. Its "rope_type" (or "type") is
            "default", "linear" (frequencies / factor) or "yarn" (arXiv 2309.00071): frequencies that turn more than
            beta_fast times in the original context stay, those that turn less than beta_slow times are divided by
            factor, linear between. cos and sin are multiplied by `attention_factor`, which defaults to
            m(mscale)/m(mscale_all_dim) if both are given and to m(1) otherwise, m(s) = 0.1 s ln(factor) + 1.
            A null value counts as absent; an unknown key is refused.
        dtype: f32 (others round the finished table).
        device: where to put it, default the CPU.

    Returns:
        [P, dim]: cosines in the first dim/2 columns, sines in the rest.

    Raises:
        InvalidArgument: a number out of range, an unknown rope_type or scaling key.

    Source: arXiv:2104.09864, YaRN arXiv:2309.00071.

    >>> from deepinfer.ops import rope
    >>> [round(value, 4) for value in rope.build_table(2, 4, 10000.0)[1].tolist()]
    [0.5403, 0.9999, 0.8415, 0.01]
    """
    checks.at_least(OP, "positions_max", checks.integer(OP, "positions_max", positions_max), 0)
    checks.at_least(OP, "dim", checks.integer(OP, "dim", dim), 0)
    if dim % 2:
        raise invalid(f"{OP}: dim", dim, "must be even", nearest=dim + 1)
    if not 0 < checks.number(OP, "theta", theta) < math.inf:
        raise invalid(f"{OP}: theta", theta, "must be positive and finite", nearest=10000.0)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise invalid(f"{OP}: dtype", dtype, "must be a float dtype", nearest="torch.float32")
    frequencies, magnitude = inverse_frequencies(dim, float(theta), scaling)
    angles = torch.outer(torch.arange(positions_max, dtype=torch.float32), frequencies)
    table = torch.cat((angles.cos(), angles.sin()), 1) * magnitude
    return table.to(device=device, dtype=dtype)


def inverse_frequencies(dim: int, theta: float, scaling: Mapping[str, Any] | None) -> tuple[torch.Tensor, float]:
    """(frequencies [dim/2] float32, factor on cosines and sines)."""
    plain = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / max(dim, 1)))
    kind, options = _parse(theta, scaling)
    if kind == "default":
        return plain, 1.0
    factor = _option(options, "factor", None)
    if kind == "linear":
        return plain / factor, 1.0
    divided = 1.0 / (factor * (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / max(dim, 1))))
    share = _interpolated(dim, theta, options)
    return divided * share + plain * (1 - share), _attention_factor(options, factor)


def yarn_magnitude(factor: float, mscale: float) -> float:
    """0.1 * mscale * ln(factor) + 1, and 1 where the context is not extended."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def softmax_factor(scaling: Mapping[str, Any] | None) -> float:
    """What the deepseek_v2/v3 classes multiply the softmax scale d_qk^-0.5 with: m(mscale_all_dim)^2 under YaRN.

    Args:
        scaling: the `rope_scaling` object of config.json, or None.

    Returns:
        The factor; 1.0 without YaRN or without mscale_all_dim.

    Raises:
        InvalidArgument: an unknown kind of scaling, or a factor that is not a number.

    Source: YaRN (arXiv:2309.00071) as the DeepSeek-V2 and V3 classes apply it.

    >>> softmax_factor(None)
    1.0
    >>> round(softmax_factor({"type": "yarn", "factor": 40, "mscale_all_dim": 1.0}), 6)
    1.873854
    """
    if not scaling or _kind(scaling) == "default" or not scaling.get("mscale_all_dim"):
        return 1.0
    return yarn_magnitude(_option(scaling, "factor", None), _option(scaling, "mscale_all_dim", None)) ** 2


def _kind(scaling: Mapping[str, Any]) -> str:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in KINDS:
        raise invalid(f"{OP}: scaling['rope_type']", kind, f"must be one of {KINDS}", nearest="'default'")
    return str(kind)


def _parse(theta: float, scaling: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    if scaling is None:
        return "default", {}
    if not isinstance(scaling, Mapping):
        raise invalid(f"{OP}: scaling", scaling, "must be a mapping or None")
    kind = _kind(scaling)
    options = {key: value for key, value in scaling.items() if value is not None}
    for key in options:
        if key not in _KEYS[kind] | _COMMON:
            raise invalid(f"{OP}: scaling", key, f"must be a key of rope_type {kind!r}: {sorted(_KEYS[kind])}")
    if float(options.get("rope_theta", theta)) != theta:
        raise invalid(f"{OP}: scaling['rope_theta']", options["rope_theta"], "must equal theta", nearest=theta)
    return kind, options


def _option(options: Mapping[str, Any], key: str, default: float | None) -> float:
    """A positive finite number of the scaling mapping."""
    value = options.get(key)
    if value is None:
        if default is None:
            raise invalid(f"{OP}: scaling[{key!r}]", None, "must be given")
        return default
    number = checks.number(OP, f"scaling[{key!r}]", value)
    if not 0 < number < math.inf:
        raise invalid(f"{OP}: scaling[{key!r}]", value, "must be positive and finite", nearest=1.0)
    return number


def _interpolated(dim: int, theta: float, options: Mapping[str, Any]) -> torch.Tensor:
    """Share of the divided frequency at each index [dim/2]: 0 = as trained, 1 = fully divided."""
    context = _option(options, "original_max_position_embeddings", None)

    def index(turns: float) -> float:
        return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = index(_option(options, "beta_fast", 32.0)), index(_option(options, "beta_slow", 1.0))
    if options.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001  # a step, as in the published code
    return ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)


def _attention_factor(options: Mapping[str, Any], factor: float) -> float:
    if "attention_factor" in options:
        return _option(options, "attention_factor", None)
    mscale, all_dim = options.get("mscale"), options.get("mscale_all_dim")
    if mscale and all_dim:
        return yarn_magnitude(factor, float(mscale)) / yarn_magnitude(factor, float(all_dim))
    return yarn_magnitude(factor, 1.0)
