"""What `--json` prints is JSON by the standard's grammar, whatever numbers a result holds."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.cli.output import print_json


def refuse(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def strict(text: str):
    """Python's reader takes NaN and Infinity unless it is told otherwise."""
    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (float("nan"), None),
        ({"a": [1.5, float("inf"), (float("-inf"), 2)]}, {"a": [1.5, None, [None, 2]]}),
        ({5: -0.25, "x": {7: float("nan")}}, {"5": -0.25, "x": {"7": None}}),
        (np.float64("nan"), None),
        ([Path("a/b"), None, True, "NaN"], ["a/b", None, True, "NaN"]),
        ({True: 1, None: 2, 1.5: 3}, {"true": 1, "null": 2, "1.5": 3}),
        ([], []),
    ],
)
def test_values(value, wanted, capsys) -> None:
    print_json(value)
    assert strict(capsys.readouterr().out) == wanted


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=12))
def test_always_a_document(value) -> None:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_json(value)
    strict(text.getvalue())
