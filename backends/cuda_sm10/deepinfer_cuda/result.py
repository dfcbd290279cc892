"""Turns the result tuples of cuda.bindings into values or `DriverError`."""

from __future__ import annotations

from typing import Any

from deepinfer.errors import DriverError


def check(function: str, result: tuple[Any, ...]) -> Any:
    """The values after the status in `result`: none, one, or a tuple. Raises DriverError with CUDA's own words."""
    status, *values = result
    if int(status) != 0:
        raise DriverError(function, getattr(status, "name", str(status)), describe(status))
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def describe(status: Any) -> str:
    """CUDA's description of a driver status; empty where it has none."""
    from cuda.bindings import driver

    if not isinstance(status, driver.CUresult):
        return ""
    error, text = driver.cuGetErrorString(status)
    return text.decode() if int(error) == 0 and text else ""
