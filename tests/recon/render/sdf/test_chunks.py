"""Evaluation in parts: the same numbers, whatever the size; memory that really runs out makes it smaller."""

import weakref

import pytest
import torch

from fieldwatch.recon.render import Chunks, HashEncoding, HashSdf, evaluate_in_chunks, gradients_in_chunks

TOO_MUCH = 1 << 58
"""Bytes that no machine has: the allocator refuses them at once."""


def ball(points):
    return points.norm(dim=-1) - 0.5


def hungry(most, calls):
    """A field that asks the real allocator for too much if it gets more than so many points."""

    def field(points):
        calls.append(len(points))
        if len(points) > most:
            torch.empty(TOO_MUCH, dtype=torch.uint8)
        return ball(points)

    return field


def test_parts_give_what_one_call_gives_bit_for_bit():
    torch.manual_seed(0)
    encoding = HashEncoding(levels=3, base_resolution=4, finest_resolution=16, table_bits=8)
    field = HashSdf(encoding=encoding, hidden=16)
    points = torch.rand(5000, 3) * 2 - 1
    whole, slopes = field.with_gradient(points)
    distances, gradients = gradients_in_chunks(field.with_gradient, points, 1237)
    assert torch.equal(evaluate_in_chunks(field, points, 1237), field(points))
    assert torch.equal(distances, whole)
    assert torch.equal(gradients, slopes)
    assert not distances.requires_grad


def test_memory_that_runs_out_halves_the_part_and_repeats_it():
    calls = []
    chunks = Chunks(8192)
    points = torch.rand(10_000, 3)
    assert torch.equal(evaluate_in_chunks(hungry(3000, calls), points, chunks), ball(points))
    assert calls == [8192, 4096, 2048, 2048, 2048, 2048, 1808]
    assert (chunks.size, chunks.shrinks) == (2048, 2)


def test_the_size_that_worked_is_remembered():
    chunks = Chunks(8192)
    calls = []
    evaluate_in_chunks(hungry(3000, []), torch.rand(10, 3), chunks)
    evaluate_in_chunks(hungry(3000, []), torch.rand(9000, 3), chunks)
    evaluate_in_chunks(hungry(3000, calls), torch.rand(4000, 3), chunks)
    assert calls == [2048, 1952]


def test_the_smallest_part_that_does_not_fit_is_told():
    chunks = Chunks(4096)
    with pytest.raises(MemoryError, match="1024 points"):
        evaluate_in_chunks(hungry(100, []), torch.rand(5000, 3), chunks)
    assert chunks.shrinks == 2


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_both_kinds_of_out_of_memory_are_known(error):
    def field(points):
        if len(points) > 2000:
            raise error
        return ball(points)

    points = torch.rand(4096, 3)
    assert torch.equal(evaluate_in_chunks(field, points, 4096), ball(points))


def test_another_fault_is_no_lack_of_memory():
    def field(points):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        evaluate_in_chunks(field, torch.rand(4, 3))


def test_what_failed_is_let_go_before_the_next_try():
    alive = weakref.WeakSet()
    held = []

    class Large:
        pass

    def field(points):
        held.append(len(alive))
        large = Large()
        alive.add(large)
        if len(points) > 2000:
            torch.empty(TOO_MUCH, dtype=torch.uint8)
        return ball(points)

    evaluate_in_chunks(field, torch.rand(4096, 3), 4096)
    assert len(held) == 6
    assert not any(held)


def test_no_points_and_wrong_answers():
    assert len(evaluate_in_chunks(ball, torch.empty(0, 3))) == 0
    with pytest.raises(ValueError, match=r"shape \(\d+, 1\) for \d+ points"):
        evaluate_in_chunks(lambda points: ball(points)[:, None], torch.rand(4, 3))
    with pytest.raises(ValueError, match="at least 1 point, got 0"):
        Chunks(0)
