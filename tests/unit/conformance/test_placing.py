"""Refusals that hang on how a tensor lies in memory reach the device as they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from deepinfer.conformance.op_errors import _place
from deepinfer.registry import aliasing
from deepinfer.registry.call import TensorMeta


class Copying:
    """A device whose copies are contiguous, as those to an accelerator are."""

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone(memory_format=torch.contiguous_format)


TARGET: Any = SimpleNamespace(device=Copying())


def test_an_overlapping_view_still_overlaps_on_the_device() -> None:
    for view in (torch.arange(3.0).expand(4, 3), torch.arange(8.0).as_strided((3, 4), (1, 1), 1)):
        placed = _place(TARGET, view)
        assert placed.stride() == view.stride()
        assert torch.equal(placed, view)
        assert aliasing.overlaps_itself(TensorMeta.of(placed))
        assert placed.data_ptr() != view.data_ptr()


def test_others_are_copied_as_the_device_likes() -> None:
    placed = _place(TARGET, torch.arange(6.0).view(2, 3).t())
    assert placed.is_contiguous()
    assert _place(TARGET, 3) == 3
    assert _place(TARGET, torch.empty(0, 3).expand(0, 3)).shape == (0, 3)
