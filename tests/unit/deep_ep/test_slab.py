"""The slab file: sizes, locks as signs of life, reclaiming, a full file system, the layout of its words."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest
import torch
from deepinfer_cpu.ep import slab as slab_module
from deepinfer_cpu.ep.slab import PREFIX, Slab, directory, reclaim

from deepinfer.errors import BackendUnavailable
from deepinfer.ops.deep_ep import Geometry, size_hint
from deepinfer.ops.deep_ep.geometry import RING_DEPTH, control_bytes

GEOMETRY = Geometry(0, 3, 16, 64, 6, 2, torch.bfloat16, 2)


@pytest.fixture
def own(monkeypatch, tmp_path):
    monkeypatch.setattr(slab_module, "directory", lambda: tmp_path)
    slab = Slab.create(GEOMETRY)
    yield slab
    slab.unlink()
    slab.close()


def test_the_file_has_the_promised_size(own):
    assert own.path.stat().st_size == size_hint(16, 64, 6, 2, ranks=3) == GEOMETRY.slab_bytes


def test_words_headers_and_chunks_do_not_overlap(own):
    spans = [(0, 1)]
    for source in range(3):
        spans += [(own.word(source, which), own.word(source, which) + 1) for which in range(4)]
        spans += [(own.header(source, n).start, own.header(source, n).stop) for n in range(2)]
    assert max(stop for _, stop in spans) * 8 <= control_bytes(3)
    assert all(a[1] <= b[0] or b[1] <= a[0] for a, b in itertools.combinations(spans, 2))
    lines = [own.word(source, which) * 8 // 64 for source in range(3) for which in range(4)]
    assert len(set(lines)) == 12
    begins = [own.chunk(s, n).data_ptr() - own.chunk(0, 0).data_ptr() for s in range(3) for n in range(RING_DEPTH)]
    assert begins == [i * GEOMETRY.chunk_bytes for i in range(3 * RING_DEPTH)]


def test_a_peer_sees_the_same_memory_and_whether_the_owner_lives(own):
    peer = Slab.attach(own.path, GEOMETRY)
    own.words[5] = 7
    own.chunk(1, 0)[3] = 9
    assert int(peer.words[5]) == 7
    assert int(peer.chunk(1, 0)[3]) == 9
    assert peer.owner_alive
    second = Slab.attach(own.path, GEOMETRY)
    assert second.owner_alive, "asking must not look like owning"
    own.close()
    assert not peer.owner_alive
    assert not second.owner_alive
    peer.close()
    second.close()


def test_views_outlive_close(own):
    chunk = own.chunk(2, 1)
    own.close()
    chunk.fill_(3)
    assert int(chunk.sum()) == 3 * GEOMETRY.chunk_bytes


def test_reclaim_takes_the_dead_and_leaves_the_living(own, tmp_path):
    stale = tmp_path / f"{PREFIX}{os.getuid()}-stale"
    stale.write_bytes(b"x")
    other = tmp_path / f"{PREFIX}{os.getuid() + 1}-foreign"
    other.write_bytes(b"x")
    assert reclaim() == [stale]
    assert own.path.exists()
    assert other.exists()
    assert not stale.exists()


def test_a_reclaimer_that_wins_the_race_costs_only_another_try(monkeypatch, tmp_path):
    """A file that loses its name between creation and lock is left, and a new one is made."""
    monkeypatch.setattr(slab_module, "directory", lambda: tmp_path)
    plain, tries = slab_module._lock_new, []

    def lock(path: Path, descriptor: int) -> bool:
        tries.append(path)
        if len(tries) == 1:
            path.unlink()
        return plain(path, descriptor)

    monkeypatch.setattr(slab_module, "_lock_new", lock)
    slab = Slab.create(GEOMETRY)
    assert len(tries) == 2
    assert slab.path == tries[1]
    slab.close()


def test_no_space_is_an_error_with_both_numbers(monkeypatch, tmp_path):
    monkeypatch.setattr(slab_module, "directory", lambda: tmp_path)

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(BackendUnavailable) as caught:
        Slab.create(GEOMETRY)
    assert str(GEOMETRY.slab_bytes) in str(caught.value)
    assert "free" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_directory_exists():
    assert directory().is_dir()


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_chunks_hold_at_least_one_record(ranks):
    for tokens, hidden, lanes in [(0, 0, 0), (1, 1, 1), (4096, 7168, 8), (8, 2**20, 2)]:
        geometry = Geometry(0, ranks, tokens, hidden, ranks, lanes, torch.float32, 1)
        assert geometry.chunk_bytes >= geometry.record_bytes
        assert geometry.chunk_bytes % 4096 == 0
