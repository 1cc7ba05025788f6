"""A batch is cut along its first dimension; a batch that cannot be cut is refused."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fieldwatch import InputError, MicroBatches
from fieldwatch.run.micro_batches import cut, length_of, most_pieces, split_evenly


@dataclass(frozen=True)
class Rays:
    origins: Tensor
    names: list[str]


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


NUMBERS = torch.arange(6).reshape(3, 2)
BATCHES = {
    "tensor": NUMBERS,
    "array": NUMBERS.numpy(),
    "samples": ["a", "b", "c"],
    "range": range(3),
    "columns": (NUMBERS, NUMBERS[:, 0]),
    "named columns": Pair(NUMBERS, NUMBERS[:, 0]),
    "mapping": {"inputs": NUMBERS, "names": ["a", "b", "c"]},
    "dataclass": Rays(NUMBERS, ["a", "b", "c"]),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_pieces_have_the_type_of_the_batch(kind):
    batch = BATCHES[kind]
    assert length_of(batch) == most_pieces(batch) == 3
    pieces = list(split_evenly(batch, 2))
    assert [type(piece) for piece, _ in pieces] == [type(batch)] * 2
    assert [length_of(piece) for piece, _ in pieces] == [1, 2]
    assert [share for _, share in pieces] == [1 / 3, 2 / 3]


def test_columns_are_cut_together():
    piece = cut(BATCHES["dataclass"], slice(1, 3))
    assert piece.names == ["b", "c"]
    assert piece.origins.tolist() == [[2, 3], [4, 5]]
    pair = cut(BATCHES["named columns"], slice(0, 1))
    assert (pair.inputs.tolist(), pair.targets.tolist()) == ([[0, 1]], [0])


def test_a_single_piece_is_the_batch_itself():
    batch = object()
    assert list(split_evenly(batch, 1)) == [(batch, 1.0)]
    assert most_pieces(batch) == 1


def test_an_ambiguous_list_of_tensors_is_refused():
    with pytest.raises(InputError, match=r"tuple\(batch\).*torch\.stack\(batch\)"):
        most_pieces([NUMBERS, NUMBERS])


@pytest.mark.parametrize("batch", [7, torch.tensor(1.0), {"a": NUMBERS, "b": NUMBERS[:2]}])
def test_a_batch_without_a_length_is_refused_when_it_has_to_be_cut(batch):
    with pytest.raises(InputError, match="split="):
        list(split_evenly(batch, 2))


def test_slices_are_even_and_never_empty():
    pieces = MicroBatches("rays", count=4)
    assert [piece.stop - piece.start for piece in pieces.slices(10)] == [2, 3, 2, 3]
    assert pieces.slices(3) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert (pieces.chunk(1000), pieces.chunk(1000, least=512), pieces.chunk(100, least=512)) == (250, 512, 100)
    pieces.load_state_dict({"count": 1000})
    assert pieces.count == pieces.most == 64
    with pytest.raises(ValueError, match="count=3, most=2"):
        MicroBatches("rays", count=3, most=2)
