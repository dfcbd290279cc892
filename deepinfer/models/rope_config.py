"""Rotary position settings in both spellings that checkpoints use, reduced to what the rotary table needs.

Old spelling: `rope_theta` beside a `rope_scaling` object (null = none) whose kind is `type` or `rope_type`.
New spelling: one `rope_parameters` object with `rope_theta` and `rope_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deepinfer.models.fields import Fields

KINDS = ("default", "linear", "yarn")
# Fields that would change the numbers and are not computed, by kind of scaling, with the value that changes nothing.
FOREIGN = {
    "default": {"partial_rotary_factor": 1},
    "linear": {"partial_rotary_factor": 1, "mscale_all_dim": 0},
    "yarn": {"partial_rotary_factor": 1},
}
NUMBERS = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")

Scaling = Mapping[str, str | float | bool]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of `dim` channels; `scaling` is what `rope.build_table` takes (None = unscaled)."""

    dim: int
    theta: float
    interleaved: bool
    scaling: Scaling | None = field(default=None, hash=False)


def parse_rope(f: Fields, dim: int, positions: int, interleaved: bool) -> RopeConfig:
    """Read the rotary settings of a config.json; `positions` is max_position_embeddings."""
    new, old = f.object("rope_parameters"), f.object("rope_scaling")
    scaling = old if old is not None and old.data else new if new is not None else Fields({}, f.where)
    sources = [s for s in (scaling, new, f) if s is not None and s.present("rope_theta")]
    theta = sources[0].number("rope_theta", low=1e-6) if sources else 10000.0
    kind = scaling.choice("rope_type" if scaling.present("rope_type") else "type", "default", KINDS)
    for name, neutral in FOREIGN[kind].items():
        for source in (scaling, f):
            if source.present(name) and source.data[name] != neutral:
                raise source.error(name, f"is not computed for rotary positions of kind {kind!r}, must be {neutral}")
    if kind == "default":
        return RopeConfig(dim, theta, interleaved)
    if kind == "linear":
        return RopeConfig(dim, theta, interleaved, {"rope_type": kind, "factor": scaling.number("factor", low=1e-6)})
    return RopeConfig(dim, theta, interleaved, _parse_yarn(scaling, f, positions))


def _parse_yarn(s: Fields, f: Fields, positions: int) -> Scaling:
    source = f if f.present("original_max_position_embeddings") else s
    original = source.integer("original_max_position_embeddings", positions)
    found: dict[str, str | float | bool] = {
        "rope_type": "yarn",
        "factor": s.number("factor", positions / original, low=1e-6),
        "original_max_position_embeddings": original,
        "truncate": s.boolean("truncate", True),
    }
    for name in NUMBERS:  # zero means "not set" for all of them
        if s.present(name) and s.number(name):
            found[name] = s.number(name)
    return found
