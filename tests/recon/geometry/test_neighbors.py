"""Neighbors equal brute force, with each point first; pruning, caching and background search of tables."""

import os
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwatch.recon.geometry import (
    NeighborRefresher,
    NeighborTable,
    cached_neighbors,
    nearest_neighbors,
    neighbor_cache,
    neighbor_cache_folder,
    neighbor_refresh,
)


def cloud(count, seed=1):
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))


def brute_force(points, count):
    squared = (points[:, None].double() - points[None].double()).square().sum(-1)
    values, indices = squared.sort(dim=-1, stable=True)
    return indices[:, :count], values[:, :count]


def same(a, b):
    return torch.equal(a.indices, b.indices) and torch.equal(a.squared, b.squared)


def test_neighbors_are_those_of_brute_force():
    points = cloud(700)
    table = nearest_neighbors(points, 16)
    indices, squared = brute_force(points, 16)
    assert table.indices.dtype == torch.int32
    assert torch.equal(table.indices.long(), indices)
    assert torch.allclose(table.squared.double(), squared, rtol=1e-6, atol=1e-12)
    assert torch.equal(table.indices[:, 0].long(), torch.arange(700))
    assert float(table.squared[:, 0].max()) == 0


@pytest.mark.parametrize(("points", "width"), [(0, 0), (1, 1), (5, 5), (16, 16), (17, 16)])
def test_few_points_have_as_many_neighbors_as_there_are(points, width):
    table = nearest_neighbors(cloud(points), 16)
    assert tuple(table.indices.shape) == (points, width)
    assert all(sorted(row.tolist()) == list(range(points)) for row in table.indices[:, :points] if points <= 16)


@settings(max_examples=30)
@given(
    places=st.lists(st.tuples(*[st.integers(-2, 2)] * 3), min_size=1, max_size=60),
    count=st.integers(1, 20),
)
def test_points_in_one_place_are_still_their_own_first_neighbor(places, count):
    points = torch.tensor(places, dtype=torch.float32)
    table = nearest_neighbors(points, count)
    _, squared = brute_force(points, count)
    assert torch.equal(table.indices[:, 0].long(), torch.arange(len(points)))
    assert torch.equal(table.squared.double(), squared)
    assert all(len(set(row.tolist())) == len(row) for row in table.indices)
    offsets = points[table.indices.long()] - points[:, None]
    assert torch.equal(offsets.square().sum(-1), table.squared)


def test_the_same_points_give_the_same_table_among_equal_distances():
    grid = torch.cartesian_prod(*[torch.arange(9.0)] * 3)
    assert same(nearest_neighbors(grid), nearest_neighbors(grid.clone()))


def test_points_that_are_not_finite_are_refused_and_named():
    points = cloud(30)
    points[7, 1] = float("nan")
    points[9, 0] = float("inf")
    with pytest.raises(ValueError, match=r"2 of 30 points.*index 7: \(.*nan"):
        nearest_neighbors(points)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        nearest_neighbors(cloud(3), 0)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.97, 1.0])
def test_a_pruned_table_is_that_of_the_survivors(share):
    points = cloud(400, seed=2)
    kept = torch.rand(400, generator=torch.Generator().manual_seed(3)) >= share
    assert same(nearest_neighbors(points, 8).pruned(kept, points[kept]), nearest_neighbors(points[kept], 8))


def test_a_prune_searches_only_rows_that_lost_a_neighbor():
    points = cloud(300)
    table = nearest_neighbors(points, 6)
    kept = torch.ones(300, dtype=torch.bool)
    kept[:3] = False
    moved = points[kept] + 10 * cloud(297, seed=9)  # intact rows keep the distances from before the points moved
    pruned = table.pruned(kept, moved)
    whole = (table.indices[kept] >= 3).all(-1)
    assert 200 < int(whole.sum()) < 297
    assert torch.equal(pruned.indices[whole], table.indices[kept][whole] - 3)
    assert torch.equal(pruned.indices[~whole], nearest_neighbors(moved, 6).indices[~whole])


def test_a_prune_needs_the_points_that_are_kept():
    points = cloud(20)
    kept = torch.arange(20) < 15
    with pytest.raises(ValueError, match=r"15 points.*got 20"):
        nearest_neighbors(points).pruned(kept, points)


def test_a_second_call_reads_the_first_ones_table(tmp_path, monkeypatch):
    points = cloud(200)
    first = cached_neighbors(points, 8, folder=tmp_path)
    monkeypatch.setattr(neighbor_cache, "nearest_neighbors", lambda *_: pytest.fail("searched again"))
    assert same(cached_neighbors(points.clone().requires_grad_(), 8, folder=tmp_path), first)
    assert len(list(tmp_path.iterdir())) == 1  # no partial file is left


def test_other_points_or_another_count_is_another_table(tmp_path):
    points = cloud(200)
    cached_neighbors(points, 8, folder=tmp_path)
    moved = points.clone()
    moved[3, 0] += 1
    assert same(cached_neighbors(moved, 8, folder=tmp_path), nearest_neighbors(moved, 8))
    assert same(cached_neighbors(points, 5, folder=tmp_path), nearest_neighbors(points, 5))
    assert len(list(tmp_path.glob("*.npz"))) == 3


def truncated(file):
    file.write_bytes(file.read_bytes()[:300])


def emptied(file):
    file.write_bytes(b"")


def strange(file):
    np.savez(file, indices=np.zeros((3, 2), np.int32), squared=np.zeros((3, 2), np.float32))


def out_of_range(file):
    np.savez(file, indices=np.full((200, 8), 200, np.int32), squared=np.zeros((200, 8), np.float32))


def another_archive(file):
    np.savez(file, other=np.zeros(3))


def one_array(file):
    with file.open("wb") as stream:
        np.save(stream, np.zeros(3))


@pytest.mark.parametrize("damage", [truncated, emptied, strange, out_of_range, another_archive, one_array])
def test_a_damaged_table_is_searched_and_written_anew(tmp_path, damage):
    points = cloud(200)
    expected = cached_neighbors(points, 8, folder=tmp_path)
    (file,) = tmp_path.glob("*.npz")
    sound = file.read_bytes()
    damage(file)
    assert same(cached_neighbors(points, 8, folder=tmp_path), expected)
    assert file.read_bytes() == sound


def test_a_folder_that_can_not_be_written_costs_only_the_search(tmp_path):
    (tmp_path / "file").write_text("")
    points = cloud(50)
    assert same(cached_neighbors(points, folder=tmp_path / "file" / "below"), nearest_neighbors(points))


def test_the_oldest_tables_make_room(tmp_path):
    for age in range(4):
        cached_neighbors(cloud(100, seed=age), 8, folder=tmp_path)
        for file in tmp_path.glob("*.npz"):
            os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns - 10**9))
    (tmp_path / "note.txt").write_text("not ours")
    size = max(file.stat().st_size for file in tmp_path.glob("*.npz"))
    oldest = sorted(tmp_path.glob("*.npz"), key=lambda file: file.stat().st_mtime_ns)
    cached_neighbors(cloud(100, seed=9), 8, folder=tmp_path, limit=3 * size)
    assert [file.exists() for file in oldest] == [False, False, True, True]
    assert (tmp_path / "note.txt").exists()


def test_the_cache_is_in_the_users_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert neighbor_cache_folder() == tmp_path / "fieldwatch" / "neighbors"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert neighbor_cache_folder() == tmp_path / ".cache" / "fieldwatch" / "neighbors"


@pytest.fixture
def neighbors():
    made = NeighborRefresher(count=8)
    yield made
    made.close()


@pytest.fixture
def held(monkeypatch):
    """Make searches wait until the event is set."""
    gate = threading.Event()

    def search(points, count):
        assert gate.wait(20)
        return nearest_neighbors(points, count)

    monkeypatch.setattr(neighbor_refresh, "nearest_neighbors", search)
    yield gate
    gate.set()


def test_a_refresh_is_of_the_points_at_its_start_and_waits_only_when_taken(neighbors, held):
    points = cloud(200)
    expected = nearest_neighbors(points, 8)
    neighbors.start(points)
    points.zero_()
    assert neighbors.searching
    assert not neighbors.ready
    assert neighbors.table is None
    held.set()
    assert same(neighbors.take(), expected)
    assert same(neighbors.table, expected)
    assert not neighbors.searching


def test_a_second_start_gives_up_the_first(neighbors, held):
    neighbors.start(cloud(100, seed=1))
    neighbors.start(cloud(120, seed=2))
    held.set()
    assert same(neighbors.take(), nearest_neighbors(cloud(120, seed=2), 8))


def test_a_prune_reaches_the_table_and_the_search_under_way(neighbors, held):
    held.set()
    points = cloud(200)
    neighbors.start(points)
    neighbors.take()
    held.clear()
    neighbors.start(points)
    left = points
    for modulus in (5, 3):
        kept = torch.arange(len(left)) % modulus != 0
        left = left[kept]
        neighbors.prune(kept, left)
        assert same(neighbors.table, nearest_neighbors(left, 8))
    held.set()
    assert same(neighbors.take(), nearest_neighbors(left, 8))


def test_growth_during_a_search_asks_for_another_start(neighbors):
    neighbors.start(cloud(100))
    with pytest.raises(ValueError, match=r"over the 100 points.*got 130: call start"):
        neighbors.prune(torch.ones(130, dtype=torch.bool), cloud(130))


def test_an_error_of_the_search_comes_out_of_take(neighbors):
    neighbors.start(torch.full((20, 3), float("nan")))
    with pytest.raises(ValueError, match="20 of 20 points"):
        neighbors.take()
    with pytest.raises(RuntimeError, match=r"call start\(points\) first"):
        neighbors.take()


def test_a_refresh_can_go_through_the_disk(neighbors, tmp_path):
    points = cloud(60)
    neighbors.start(points, cached=True, folder=tmp_path)
    assert same(neighbors.take(), cached_neighbors(points, 8, folder=tmp_path))
    assert len(list(tmp_path.glob("*.npz"))) == 1


def test_a_table_moves_to_another_device():
    table = nearest_neighbors(cloud(10)).to("meta")
    assert isinstance(table, NeighborTable)
    assert table.indices.device.type == table.squared.device.type == "meta"
