"""Simulated devices: names, numbering, what is refused, and a GEMM with tensor maps through the usual dispatch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deepinfer_cuda import simdevice

import deepinfer
from deepinfer.errors import BackendUnavailable
from deepinfer.hal import DriverKind
from deepinfer.ops import deep_gmm
from deepinfer.registry import pin

built = pytest.mark.skipif(not simdevice.probe().available, reason="the PTX simulator is not built")


@built
@pytest.mark.parametrize(("spec", "arch", "index"), [
    ("cuda/sim", "sm_90", 0), ("cuda_sm90/sim:3", "sm_90", 3), ("cuda_sm10/sim:1", "sm_100", 9),
    ("cuda/sim:8", "sm_100", 8),
])
def test_a_name_selects_a_profile(spec: str, arch: str, index: int) -> None:
    device = deepinfer.device(spec)
    assert (device.props.arch, device.index, device.driver) == (arch, index, "sim")
    assert device.props.kind is DriverKind.SIMULATOR
    assert device.torch_device == torch.device("cpu")
    assert deepinfer.device(device.spec).props.arch == arch


@built
@pytest.mark.parametrize("spec", ["cuda_sm90/sim:8", "cuda/sim:16"])
def test_devices_that_do_not_exist_are_refused(spec: str) -> None:
    with pytest.raises(BackendUnavailable, match="device"):
        deepinfer.device(spec)


@built
def test_an_architecture_without_profile_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match="sm_103"):
        simdevice.open_simulated(0, "sm_103")


def test_a_missing_library_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert simdevice.library(tmp_path / "a" / "b" / "c") is None
    monkeypatch.setattr(simdevice, "library", lambda: None)
    probe = simdevice.probe()
    assert not probe.available
    assert simdevice.LIBRARY in probe.reasons[0]
    with pytest.raises(BackendUnavailable, match=r"not built"):
        simdevice.SimDriver()


def test_the_newest_library_of_a_build_is_found(tmp_path: Path) -> None:
    package = tmp_path / "backends" / "cuda_sm10" / "deepinfer_cuda"
    target = tmp_path / "build" / "ptxsim" / simdevice.LIBRARY
    target.parent.mkdir(parents=True)
    target.touch()
    assert simdevice.library(package) == target
    inside = package / "sim" / simdevice.LIBRARY
    inside.parent.mkdir(parents=True)
    inside.touch()
    assert simdevice.library(package) == inside


@built
def test_the_hopper_product_runs_with_its_tensor_maps() -> None:
    device = deepinfer.device("cuda_sm90/sim")
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-4, 5, shape, generator=generator).bfloat16() for shape in ((70, 128), (72, 128)))
    with deepinfer.use_backend(device), pin(device, "deep_gmm.gemm", "sm90_gemm_bf16"):
        assert torch.equal(deep_gmm.gemm(a, b), (a.float() @ b.float().t()).bfloat16()), "seed 5"


@built
@pytest.mark.parametrize("arch", ["sm90", "sm10"])
def test_operands_and_lists_of_any_form_reach_the_kernels(arch: str) -> None:
    """Odd addresses and row lengths, strided counts, counts and starts of two types: no call falls back."""
    generator = torch.Generator().manual_seed(7)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-4, 5, shape, generator=generator).bfloat16()

    a, b = integers(20, 34)[:, 1:], integers(3, 9, 33)
    lists = [
        (torch.tensor([5, 99, 0, 99, 9, 99])[::2], None), (torch.tensor([5, 2, 9]), torch.tensor([0, 5, 11]).int()),
        (torch.tensor([5, 2, 9]).int(), torch.tensor([0, 99, 5, 99, 11, 99])[::2]),
    ]
    with deepinfer.use_backend(f"cuda_{arch}/sim"), deepinfer.fallback("error"):
        for counts, starts in lists:
            out = torch.full((20, 9), 7.0, dtype=torch.bfloat16)
            want, row = out.clone(), 0
            for g, count in enumerate(counts.tolist()):
                first = row if starts is None else int(starts[g])
                want[first : first + count] = (a[first : first + count].float() @ b[g].float().t()).bfloat16()
                row += count
            for _ in range(2):
                deep_gmm.grouped_gemm(a, b, counts, starts=starts, out=out)
                assert torch.equal(out, want), "seed 7"
        none = deep_gmm.grouped_gemm(a, b[:0], torch.zeros(0, dtype=torch.int64))
        assert none.shape == (20, 9)
