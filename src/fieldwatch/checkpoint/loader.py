"""torch's DataLoader, so that a killed and resumed run gets the batches that it would have got."""

import hashlib
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import data
from torch.utils.data import DataLoader, Sampler, get_worker_info

from fieldwatch.base import InputError
from fieldwatch.checkpoint.data_orders import note_used
from fieldwatch.checkpoint.dataset_generators import (
    generator_state,
    generators_of,
    seed_generator,
    set_generator_state,
)
from fieldwatch.checkpoint.incident import StoredStateError

_default_collate: Any = data.default_collate  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  torch leaves it open
_FORBIDDEN_OPTIONS = (
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "generator",
    "drop_last",
    "collate_fn",
    "dataset",
)
_LARGEST_NUMPY_SEED = 2**32

_STREAM: type = data.IterableDataset
_Key = tuple[int, int, list[int]]
"""What a worker is asked for: epoch, number of the batch in it, indices of its samples."""


class ResumableLoader:
    """Batches of a data set from torch's ``DataLoader``, the same ones whether the run was interrupted or not.

    * **Order.** Every epoch has a permutation of its own that depends on ``seed`` and the number of the epoch alone.
    * **Position.** What counts is what the loop was given, not what workers have read ahead. Ask for the step before
      the batch, ``for step, batch in zip(run.steps(n), run.batches(loader))``: a batch that was handed out counts as
      trained on.
    * **Randomness of the data**, such as augmentation: before each batch the global generators of torch, numpy and
      Python, and the generators that the data set holds, are seeded by ``seed``, the epoch and the number of the
      batch. So it depends neither on the number of workers nor on when they run.
    * **Randomness of the training**, such as dropout, is left alone, with workers and without.

    Give it to ``run.track(loader=loader)``. An iteration ends with the epoch, and the next one begins the next epoch;
    one that was broken off, or restored, goes on where it stood. ``len(loader)`` is the number of batches in an epoch.

    Args:
        dataset: with ``__len__`` and ``__getitem__``.
        batch_size: samples per batch.
        seed: of order and randomness.
        shuffle: whether the order is random; otherwise it is that of the data set.
        drop_last: leave out the smaller batch at the end of an epoch.
        collate_fn: makes a batch of a list of samples; None takes torch's ``default_collate``.
        **options: of ``DataLoader``: ``num_workers``, ``persistent_workers``, ``pin_memory``, ``prefetch_factor``, ...

    Raises:
        InputError: the data set has no indices, no batch could be drawn, or an option is the loader's own.
    """

    def __init__(  # noqa: PLR0913  as torch's DataLoader has them
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        _check(dataset, batch_size, options, drop_last=drop_last)
        self.dataset = dataset
        made_with = {"length": len(dataset), "batch_size": batch_size, "drop_last": drop_last}
        self._position = _EpochPosition({**made_with, "shuffle": shuffle, "seed": seed})
        self._restored = 0
        self._iterations = 0
        self._loader = DataLoader(
            cast("Any", _Batches(dataset, collate_fn or _default_collate, seed)),
            batch_size=None,
            sampler=self._position,
            collate_fn=_identity,
            generator=torch.Generator(),  # else each new iterator draws from the generator that the training draws from
            **options,
        )

    @property
    def epoch(self) -> int:
        """The 0-based epoch that the next batch comes from."""
        return self._position.epoch

    def __len__(self) -> int:
        return len(self._position)

    def __iter__(self) -> Iterator[Any]:
        """Give out the rest of the epoch.

        Raises:
            RuntimeError: another iteration was begun meanwhile: there is one position, and both would move it.
        """
        self._iterations += 1
        iteration = self._iterations
        while True:
            restored = self._restored
            epoch = self.epoch
            iterator = iter(self._loader)
            while restored == self._restored and epoch == self.epoch:
                batch = next(iterator)
                # Counted before the batch is handed out: a checkpoint of the step that uses it must not repeat it.
                self._position.advance()
                note_used(self)
                yield batch
                if iteration != self._iterations:
                    raise RuntimeError(
                        "another iteration over this ResumableLoader was begun: use one iterator at a time, or two "
                        "loaders"
                    )
            if restored == self._restored:  # else a rollback moved the position: it counts from the next batch on
                return

    def state_dict(self) -> dict[str, Any]:
        """Return the position: everything else follows from the arguments."""
        return {
            "epoch": self._position.epoch,
            "batch": self._position.batch,
            "made_with": dict(self._position.made_with),
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Go on where the state was taken, also in the middle of an iteration.

        Raises:
            StoredStateError: it was taken with other data, or another seed, batch size, shuffle or drop_last.
        """
        own = self._position.made_with
        stored = dict(state_dict["made_with"])
        if own != stored:
            differing = {key: (stored.get(key), value) for key, value in own.items() if stored.get(key) != value}
            description = ", ".join(
                f"{key} {here!r}, stored with {there!r}" for key, (there, here) in differing.items()
            )
            raise StoredStateError(
                f"ResumableLoader has {description}: its order would be another. Use the same data and arguments as "
                "the run began with, or a new run folder"
            )
        self._position.epoch = int(state_dict["epoch"])
        self._position.batch = int(state_dict["batch"])
        self._restored += 1


class _EpochPosition(Sampler[Any]):
    """The position, and the order that follows from it; torch's loader draws keys from it, ahead of the position.

    It knows nothing of the loader: a cycle of references would let workers live on after the loader is gone.
    """

    def __init__(self, made_with: dict[str, Any]) -> None:
        self.made_with = made_with
        self.epoch = 0
        self.batch = 0

    def __len__(self) -> int:
        length: int = self.made_with["length"]
        size: int = self.made_with["batch_size"]
        return length // size if self.made_with["drop_last"] else -(-length // size)

    def __iter__(self) -> Iterator[_Key]:
        """Yield what is left of the epoch: its number, the number of each batch, and the indices of its samples."""
        epoch = self.epoch
        order = self._order(epoch)
        size: int = self.made_with["batch_size"]
        for number in range(self.batch, len(self)):
            yield epoch, number, order[number * size : (number + 1) * size].tolist()

    def advance(self) -> None:
        """Count a batch that was handed out; after the last one the next epoch begins."""
        self.batch += 1
        if self.batch == len(self):
            self.epoch += 1
            self.batch = 0

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """Return the permutation of an epoch: by sorted numbers of a counter-based generator, so of no past draws."""
        length: int = self.made_with["length"]
        if not self.made_with["shuffle"]:
            return np.arange(length)
        # Philox is counter-based: an epoch's permutation needs no draw of the epochs before it.
        draws: Any = np.random.Philox(key=seed_of(self.made_with["seed"], epoch, "order"))
        numbers: NDArray[np.uint64] = draws.random_raw(length)
        return np.argsort(numbers, kind="stable")


def seed_of(*parts: object) -> int:
    """Return 63 bits that depend on the parts alone: the same in every process, on every machine."""
    text = "/".join(map(str, parts)).encode()
    # 63 bits: torch takes signed 64-bit seeds.
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class _Batches:
    """The data set as torch's loader sees it: of whole batches, each drawn with random numbers of its own."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], seed: int) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._generators: Sequence[Any] | None = None

    def __getitem__(self, key: _Key) -> Any:
        epoch, number, indices = key
        if self._generators is None:  # in a worker those of its copy of the data set
            self._generators = generators_of(self._dataset)
        # A worker is a process of its own: its generators are nobody else's.
        with nullcontext() if get_worker_info() else _preserved_random_state(self._generators):
            _seed_all(seed_of(self._seed, epoch, number), self._generators)
            return self._collate(self._samples(indices))

    def _samples(self, indices: list[int]) -> list[Any]:
        get_many = getattr(self._dataset, "__getitems__", None)  # torch's name for many samples at once
        return [self._dataset[index] for index in indices] if get_many is None else get_many(indices)


@contextmanager
def _preserved_random_state(generators: Sequence[Any]) -> Generator[None]:
    """Leave the training's random numbers as they are: without workers, samples are made in its process.

    The generators of GPUs are neither seeded nor put back: they belong to the training.
    """
    python = random.getstate()
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002  data sets draw from the global generator
    of_torch = torch.get_rng_state()
    own = [generator_state(one) for one in generators]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(of_torch)
        for generator, state in zip(generators, own, strict=True):
            set_generator_state(generator, state)


def _seed_all(seed: int, generators: Sequence[Any]) -> None:
    random.seed(seed)
    np.random.seed(seed % _LARGEST_NUMPY_SEED)  # noqa: NPY002  data sets draw from the global generator
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs of the training as well
    for number, generator in enumerate(generators):
        seed_generator(generator, seed_of(seed, number))


def _identity(batch: Any) -> Any:
    return batch


def _check(dataset: Any, batch_size: int, options: dict[str, Any], *, drop_last: bool) -> None:
    own = sorted(options.keys() & set(_FORBIDDEN_OPTIONS))
    if own:
        raise InputError(
            f"ResumableLoader({', '.join(own)}=...): the loader makes these itself, expected options of DataLoader "
            "such as num_workers; take a DataLoader of your own where you need another order"
        )
    if isinstance(dataset, _STREAM) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InputError(
            f"ResumableLoader expected a data set with __len__ and __getitem__, got {type(dataset).__qualname__}: the "
            "place in a stream cannot be restored; give its samples indices"
        )
    if batch_size < 1 or not len(dataset) or (drop_last and batch_size > len(dataset)):
        raise InputError(
            f"ResumableLoader(batch_size={batch_size}, drop_last={drop_last}) never has a batch of {len(dataset)} "
            "samples: expected at least one sample, and a batch size from 1 to their number"
        )
