"""A DataLoader whose position can be saved, so that a resumed run gets the same batches as an uninterrupted one."""

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
    # Options that this loader sets itself.
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "generator",
    "drop_last",
    "collate_fn",
    "dataset",
)
# numpy's global generator accepts 32-bit seeds only.
_LARGEST_NUMPY_SEED = 2**32

_STREAM: type = data.IterableDataset
_Key = tuple[int, int, list[int]]
"""Key of a batch: epoch, number of the batch within the epoch, indices of its samples."""


class ResumableLoader:
    """Batches from torch's ``DataLoader``, identical whether or not the run was interrupted.

    * **Order.** Each epoch has its own permutation, which depends only on ``seed`` and the number of the epoch.
    * **Position.** The position counts the batches handed to the loop, not those that workers have prefetched. Request
      the step before the batch, ``for step, batch in zip(run.steps(n), run.batches(loader))``, because a batch counts
      as used once it is handed out.
    * **Randomness of the data**, such as augmentation: before each batch, the global generators of torch, numpy and
      Python, and the generators that the data set holds, are seeded from ``seed``, the epoch and the number of the
      batch. The result therefore does not depend on the number or the timing of workers.
    * **Randomness of the training**, such as dropout, is not affected, with or without workers.

    Pass the loader to ``run.track(loader=loader)``. An iteration ends with the epoch, and the next one starts the next
    epoch; an iteration that was interrupted or restored continues at its position. ``len(loader)`` is the number of
    batches per epoch.

    Args:
        dataset: data set with ``__len__`` and ``__getitem__``.
        batch_size: number of samples per batch.
        seed: seed of the order and of the data's randomness.
        shuffle: whether to shuffle the samples in every epoch; otherwise the order is that of the data set.
        drop_last: whether to drop the smaller batch at the end of an epoch.
        collate_fn: function that merges a list of samples into a batch; None for torch's ``default_collate``.
        **options: further options of ``DataLoader``: ``num_workers``, ``persistent_workers``, ``pin_memory``,
            ``prefetch_factor``, ...

    Raises:
        InputError: if the data set has no indices, there is no complete batch, or an option is set by this loader.
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
        # Before DataLoader, whose errors would name its own arguments.
        _check(dataset, batch_size, options, drop_last=drop_last)
        self.dataset = dataset
        made_with = {"length": len(dataset), "batch_size": batch_size, "drop_last": drop_last}
        self._position = _EpochPosition({**made_with, "shuffle": shuffle, "seed": seed})
        self._restored = 0
        self._iterations = 0
        self._loader = DataLoader(
            # batch_size=None disables automatic batching: an item of the data set is a whole batch.
            cast("Any", _Batches(dataset, collate_fn or _default_collate, seed)),
            batch_size=None,
            sampler=self._position,
            collate_fn=_identity,
            # Without its own generator, each new iterator would draw from the global one and change the training.
            generator=torch.Generator(),
            **options,
        )

    @property
    def epoch(self) -> int:
        """0-based epoch of the next batch."""
        return self._position.epoch

    def __len__(self) -> int:
        return len(self._position)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rest of the epoch.

        Raises:
            RuntimeError: if another iteration was started meanwhile: both would advance the same position.
        """
        self._iterations += 1
        # A later iteration invalidates this one.
        iteration = self._iterations
        while True:
            restored = self._restored
            epoch = self.epoch
            iterator = iter(self._loader)
            while restored == self._restored and epoch == self.epoch:
                batch = next(iterator)
                # Counted before the batch is handed out, so that a checkpoint after its step does not repeat it.
                self._position.advance()
                note_used(self)
                yield batch
                # Checked after the yield, because the other iteration starts while this one is suspended.
                if iteration != self._iterations:
                    raise RuntimeError(
                        "another iteration over this ResumableLoader was started: use one iterator at a time, or two "
                        "loaders"
                    )
            # Otherwise a rollback moved the position: continue with a new iterator from there.
            if restored == self._restored:
                return

    def state_dict(self) -> dict[str, Any]:
        """Return the position; everything else follows from the arguments."""
        return {
            "epoch": self._position.epoch,
            "batch": self._position.batch,
            "made_with": dict(self._position.made_with),
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from a stored position, also in the middle of an iteration.

        Raises:
            StoredStateError: if the position was stored with another data set length, seed, batch size, shuffle or
                drop_last.
        """
        current = self._position.made_with
        stored = dict(state_dict["made_with"])
        if current != stored:
            differing = {key: (stored.get(key), value) for key, value in current.items() if stored.get(key) != value}
            description = ", ".join(
                f"{key} {here!r}, stored with {there!r}" for key, (there, here) in differing.items()
            )
            raise StoredStateError(
                f"ResumableLoader has {description}: the order of the data would change. Use the data and arguments "
                "that the run started with, or a new run folder"
            )
        self._position.epoch = int(state_dict["epoch"])
        self._position.batch = int(state_dict["batch"])
        # Running iterations notice the change and continue from the restored position.
        self._restored += 1


class _EpochPosition(Sampler[Any]):
    """The position and the order that follows from it. Torch's loader prefetches keys from it, ahead of the position.

    It has no reference to the loader, because a reference cycle would keep workers alive after the loader is gone.
    """

    def __init__(self, made_with: dict[str, Any]) -> None:
        self.made_with = made_with
        self.epoch = 0
        self.batch = 0

    def __len__(self) -> int:
        length: int = self.made_with["length"]
        size: int = self.made_with["batch_size"]
        # The double negation rounds up.
        return length // size if self.made_with["drop_last"] else -(-length // size)

    def __iter__(self) -> Iterator[_Key]:
        """Yield the keys of the remaining batches of the epoch."""
        epoch = self.epoch
        order = self._order(epoch)
        size: int = self.made_with["batch_size"]
        for number in range(self.batch, len(self)):
            yield epoch, number, order[number * size : (number + 1) * size].tolist()

    def advance(self) -> None:
        """Count a batch that was handed out; after the last one, the next epoch begins."""
        self.batch += 1
        if self.batch == len(self):
            self.epoch += 1
            self.batch = 0

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """Return the permutation of an epoch ``[length]``, by sorting random numbers."""
        length: int = self.made_with["length"]
        if not self.made_with["shuffle"]:
            return np.arange(length)
        # Philox is counter-based: the permutation of an epoch does not depend on draws in earlier epochs.
        draws: Any = np.random.Philox(key=seed_of(self.made_with["seed"], epoch, "order"))
        numbers: NDArray[np.uint64] = draws.random_raw(length)
        return np.argsort(numbers, kind="stable")


def seed_of(*parts: object) -> int:
    """Return a 63-bit seed that depends only on the parts: the same in every process and on every machine."""
    # Python's hash() of strings differs between processes; BLAKE2 does not.
    text = "/".join(map(str, parts)).encode()
    # 63 bits, because torch expects signed 64-bit seeds.
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class _Batches:
    """Data set of whole batches for torch's loader; each batch has its own seed."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], seed: int) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._generators: Sequence[Any] | None = None

    def __getitem__(self, key: _Key) -> Any:
        epoch, number, indices = key
        # Found on first use, so that a worker finds the generators of its own copy of the data set.
        if self._generators is None:
            self._generators = generators_of(self._dataset)
        # In a worker process the generators are not shared with the training, so there is nothing to restore.
        with nullcontext() if get_worker_info() else _preserved_random_state(self._generators):
            _seed_all(seed_of(self._seed, epoch, number), self._generators)
            return self._collate(self._samples(indices))

    def _samples(self, indices: list[int]) -> list[Any]:
        # torch's optional protocol for fetching several samples at once.
        get_many = getattr(self._dataset, "__getitems__", None)
        return [self._dataset[index] for index in indices] if get_many is None else get_many(indices)


@contextmanager
def _preserved_random_state(generators: Sequence[Any]) -> Generator[None]:
    """Restore the random state of the training on exit: without workers, samples are loaded in its process.

    The generators of GPUs are neither seeded nor restored, because data sets do not use them.
    """
    python_state = random.getstate()
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002  data sets draw from the global generator
    torch_state = torch.get_rng_state()
    states = [generator_state(generator) for generator in generators]
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.set_rng_state(torch_state)
        for generator, state in zip(generators, states, strict=True):
            set_generator_state(generator, state)


def _seed_all(seed: int, generators: Sequence[Any]) -> None:
    random.seed(seed)
    np.random.seed(seed % _LARGEST_NUMPY_SEED)  # noqa: NPY002  data sets draw from the global generator
    # torch.manual_seed would also seed the GPUs, which belong to the training.
    torch.default_generator.manual_seed(seed)
    for number, generator in enumerate(generators):
        seed_generator(generator, seed_of(seed, number))


def _identity(batch: Any) -> Any:
    return batch


def _check(dataset: Any, batch_size: int, options: dict[str, Any], *, drop_last: bool) -> None:
    forbidden = sorted(options.keys() & set(_FORBIDDEN_OPTIONS))
    if forbidden:
        raise InputError(
            f"ResumableLoader({', '.join(forbidden)}=...): the loader sets these itself, expected other options of "
            "DataLoader such as num_workers; use torch's DataLoader if you need another order"
        )
    if isinstance(dataset, _STREAM) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InputError(
            f"ResumableLoader expected a data set with __len__ and __getitem__, got {type(dataset).__qualname__}: the "
            "position in a stream cannot be restored; use a data set with indices"
        )
    if batch_size < 1 or not len(dataset) or (drop_last and batch_size > len(dataset)):
        raise InputError(
            f"ResumableLoader(batch_size={batch_size}, drop_last={drop_last}) got {len(dataset)} samples and has no "
            "batch: expected at least one sample, and a batch size from 1 to their number"
        )
