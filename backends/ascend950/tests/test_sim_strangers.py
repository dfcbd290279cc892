"""Kernels that the simulator's authors did not have in mind: right results under all schedules and no report; each with
a twin that makes one mistake, which is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from asc_harness import SimDriver, run

from deepinfer.errors import DriverError


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Case:
    """One launch: what goes in, what comes out, and the check; `mistake`: what the broken twin's report says."""

    kernel: str
    reads: list[torch.Tensor]
    writes: list[torch.Tensor]
    values: list[int]
    check: Callable[[], None]
    mistake: str
    grid: int = 1

    def launch(self, broken: bool) -> None:
        values = [*self.values, *[0] * (7 - len(self.values)), int(broken)]
        run("strangers", self.kernel, self.reads, self.writes, values, self.grid)


def close(found: torch.Tensor, wanted: np.ndarray, rtol: float, atol: float) -> None:
    np.testing.assert_allclose(found.double().numpy(), wanted, rtol=rtol, atol=atol)


def norm(rows: int, n: int) -> Case:
    x, gamma, y = floats(rows, n).half(), floats(n, seed=1).half(), torch.zeros(rows, n).half()

    def check() -> None:
        wide = x.double().numpy()
        normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
        close(y, normal * gamma.double().numpy(), 2e-3, 2e-3)

    return Case("norm_in_registers", [x, gamma], [y], [rows, n], check, "read after write on UB", 2)


def top_k(n: int, k: int) -> Case:
    keys = torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(n), dtype=torch.uint8)
    chosen, found = torch.full((n + 64,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)

    def check() -> None:
        threshold = np.sort(keys.numpy())[::-1][k - 1]
        above, equal = np.flatnonzero(keys.numpy() > threshold), np.flatnonzero(keys.numpy() == threshold)
        assert chosen[:k].tolist() == [*above, *equal][:k]
        assert (chosen[k:] == -1).all()
        assert found.item() == len(above) + len(equal)

    return Case("top_k", [keys], [chosen, found], [n, k], check, "never written")


def lookup(rows: int) -> Case:
    table, out = floats(rows, 8), torch.zeros(2, 64)
    index = torch.randint(0, rows, (64,), generator=torch.Generator().manual_seed(2), dtype=torch.int32)

    def check() -> None:
        picked = table[index[:8].long()]
        assert torch.equal(out[0].view(8, 8), picked.t())
        assert torch.equal(out[1].view(8, 8), 2 * picked)

    return Case("lookup", [table, index], [out], [rows], check, r"without asc_mem_bar\(VST_VLD\)")


def bias_i8(m: int, k: int, n: int) -> Case:
    g = torch.Generator().manual_seed(m)
    a, b = (torch.randint(-128, 128, shape, generator=g, dtype=torch.int8) for shape in ((m, k), (k, n)))
    bias, c = (
        torch.randint(-1000, 1000, (n,), generator=g, dtype=torch.int32),
        torch.zeros((m, n), dtype=torch.int32),
    )

    def check() -> None:
        assert np.array_equal(c.numpy(), a.numpy().astype(np.int64) @ b.numpy().astype(np.int64) + bias.numpy())

    return Case("matmul_bias_i8", [a, b, bias], [c], [m, k, n], check, "race: .* on BiasTable|never written")


def quantised(m: int, k: int, n: int) -> Case:
    g = torch.Generator().manual_seed(n)
    a, b = (torch.randint(-2, 3, shape, generator=g).bfloat16() for shape in ((k, m), (n, k)))
    scale = 2.0 ** torch.randint(-3, 1, (n,), generator=g)
    words = torch.from_numpy(scale.numpy().astype(np.float32).view(np.uint32).astype(np.int64))
    c = torch.zeros((m, n), dtype=torch.uint8)

    def check() -> None:
        exact = torch.relu(a.double().t() @ b.double().t() * scale.double())
        assert torch.equal(c.view(torch.float8_e4m3fn).float(), exact.float().to(torch.float8_e4m3fn).float())

    return Case("quantised_columns", [a, b, words], [c], [m, k, n], check, "race: read after write on L1|never written")


def split_k(blocks: int) -> Case:
    a, b = (torch.randint(-2, 3, (32, 64 * blocks), generator=torch.Generator().manual_seed(s)).half() for s in (1, 2))
    c = torch.zeros(32, 32)

    def check() -> None:
        assert torch.equal(c.double(), a.double() @ b.double().t())

    return Case("split_k", [a, b], [c], [32, 64 * blocks, 32], check, "write after write on global memory", blocks)


def cube_to_vector(tiles: int, grid: int) -> Case:
    a, b, r = floats(64 * tiles, 64).half(), floats(64, 64, seed=1).half(), floats(64 * tiles, 64, seed=2)
    out = torch.zeros(64 * tiles, 64)

    def check() -> None:
        c = a.double() @ b.double().t()
        close(out, (torch.where(c > 0, c, 0.25 * c) + r.double()).numpy(), 1e-5, 1e-4)

    return Case("cube_feeds_vector", [a, b, r], [out], [tiles], check, r"race: .* on UB.*strangers\.asc", grid)


def message(counts: list[int]) -> Case:
    a, b, c = floats(64, 32).half(), floats(32, 32, seed=1).half(), torch.full((64, 32), 7.0)
    rows = sum(counts)

    def check() -> None:
        close(c[:rows], (a.double()[:rows] @ b.double().t()).numpy(), 1e-5, 1e-4)
        assert (c[rows:] == 7).all()

    given = torch.tensor(counts, dtype=torch.int32)
    return Case("scratch_message", [a, b, given], [c], [len(counts)], check, "SSBuf")


def work_queue(tiles: int, blocks: int) -> Case:
    x, y = 3 * floats(tiles, 64), torch.zeros(tiles, 64)
    queue = torch.full((tiles + 1,), -1, dtype=torch.int32)
    queue[0] = 0

    def check() -> None:
        assert torch.equal(y, (2 * x).round())
        assert queue[0].item() == tiles + blocks  # each block asked once too often
        assert ((queue[1:] >= 0) & (queue[1:] < blocks)).all()

    return Case("work_queue", [x], [y, queue], [tiles], check, "race: .* on global memory", blocks)


def same_twice() -> Case:
    a, b, c = floats(65, 64).half(), floats(64, 64, seed=1).half(), torch.zeros(64, 64)

    def check() -> None:
        close(c, (a.double()[:64] @ b.double()).numpy(), 1e-5, 1e-4)

    return Case("both_bring_the_same", [a, b], [c], [], check, "race: write after write on L1")


CASES: dict[str, list[Callable[[], Case]]] = {
    "norm": [lambda: norm(5, 512), lambda: norm(3, 100), lambda: norm(1, 1)],
    "top_k": [lambda: top_k(1000, 50), lambda: top_k(4096, 777), lambda: top_k(65, 65)],
    "lookup": [lambda: lookup(8), lambda: lookup(300)],
    "bias_i8": [lambda: bias_i8(30, 70, 40), lambda: bias_i8(16, 128, 32)],
    "quantised": [lambda: quantised(32, 64, 256), lambda: quantised(64, 32, 64)],
    "split_k": [lambda: split_k(4)],
    "cube_to_vector": [lambda: cube_to_vector(7, 2), lambda: cube_to_vector(3, 1)],
    "message": [lambda: message([3, 0, 20, 1]), lambda: message([0, 0])],
    "work_queue": [lambda: work_queue(9, 4), lambda: work_queue(2, 3)],
    "same_twice": [same_twice],
}


@pytest.mark.parametrize("policy", [0, 1, 2], ids=["eager", "lazy", "random"])
@pytest.mark.parametrize("name", CASES)
def test_right_and_without_a_report(sim: SimDriver, name: str, policy: int) -> None:
    sim.set_option("policy", policy)
    for make in CASES[name]:
        case = make()
        case.launch(broken=False)
        case.check()
        assert sim.warnings() == []


@pytest.mark.parametrize("name", CASES)
def test_the_mistake_is_reported(sim: SimDriver, name: str) -> None:
    case = CASES[name][0]()
    with pytest.raises(DriverError, match=case.mistake):
        case.launch(broken=True)
