"""Rotary position settings in both spellings that checkpoints use, reduced to what the rotary table needs.

Old spelling: `rope_theta` beside a `rope_scaling` object (null = none) whose kind is `type` or `rope_type`.
New spelling: one `rope_parameters` object with `rope_theta` and `rope_type`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from deepinfer.models.fields import Fields

KINDS = ("default", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of `dim` channels. `yarn` holds the scaling fields (None = unscaled).

    `table_mscale` multiplies cosines and sines, `softmax_mscale` (squared) multiplies the softmax scale.
    """

    dim: int
    theta: float
    interleaved: bool
    yarn: Mapping[str, float] | None = field(default=None, hash=False)
    table_mscale: float = 1.0
    softmax_mscale: float = 1.0


def parse_rope(f: Fields, dim: int, positions: int, interleaved: bool) -> RopeConfig:
    """Read the rotary settings of a config.json; `positions` is max_position_embeddings."""
    new, old = f.object("rope_parameters"), f.object("rope_scaling")
    scaling = old if old is not None and old.data else new if new is not None else Fields({}, f.where)
    theta = next((s.number("rope_theta", low=1e-6) for s in (scaling, new, f) if s is not None and s.present("rope_theta")), 1e4)
    kind = scaling.choice("rope_type" if scaling.present("rope_type") else "type", "default", KINDS)
    if kind == "default":
        return RopeConfig(dim, theta, interleaved)
    yarn = _parse_yarn(scaling, f, positions)
    all_dim = yarn["mscale_all_dim"]
    return RopeConfig(
        dim, theta, interleaved, yarn,
        table_mscale=_table_mscale(scaling, yarn),
        softmax_mscale=magnitude(yarn["factor"], all_dim) if all_dim else 1.0,
    )


def magnitude(factor: float, mscale: float) -> float:
    """YaRN's correction of attention magnitude for a context stretched by `factor`."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _parse_yarn(s: Fields, f: Fields, positions: int) -> dict[str, float]:
    source = f if f.present("original_max_position_embeddings") else s
    original = source.integer("original_max_position_embeddings", positions)
    return {
        "factor": s.number("factor", positions / original, low=1e-6),
        "original_max_position_embeddings": float(original),
        "beta_fast": s.number("beta_fast", 32.0) or 32.0,
        "beta_slow": s.number("beta_slow", 1.0) or 1.0,
        "mscale": s.number("mscale", 0.0),
        "mscale_all_dim": s.number("mscale_all_dim", 0.0),
        "truncate": float(s.boolean("truncate", True)),
    }


def _table_mscale(s: Fields, yarn: Mapping[str, float]) -> float:
    if s.present("attention_factor"):
        return s.number("attention_factor")
    factor, mscale, all_dim = yarn["factor"], yarn["mscale"], yarn["mscale_all_dim"]
    if mscale and all_dim:
        return magnitude(factor, mscale) / magnitude(factor, all_dim)
    return magnitude(factor, 1.0)
