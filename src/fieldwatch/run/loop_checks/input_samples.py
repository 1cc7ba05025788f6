"""Small samples of the inputs of a module, and how far those of evaluations are from those of the training."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

_ROWS = 32
_COLUMNS = 64
"""About the number of rows and columns of a tensor that are read, so that the cost does not depend on its size."""
_BINS = 512
"""Number of bins in which integers (tokens, indices, classes) are counted."""
_KEEP = 0.1
"""Weight of a new batch in the averages."""


SampledInput: TypeAlias = tuple[Tensor, Float[Tensor, "rows columns"] | None]
"""An argument of a module, and what `rows_of` returns for it."""


def rows_of(value: Tensor) -> Float[Tensor, "rows columns"] | None:
    """Return about 32 rows and 64 columns of a batch, spread over all of it; None if it cannot be read here."""
    # Subclasses (fake, distributed or wrapped tensors) may do anything when they are read.
    plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
    if not plain or not value.dim() or not value.numel() or value.is_complex() or value.is_meta:
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(value):  # noqa: SLF001  # pyright: ignore  torch has no public name for it
        return None
    if value.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    rows = some_rows(value)
    flat = rows.reshape(len(rows), -1)
    return flat[:, :: max(flat.shape[1] // _COLUMNS, 1)].float()


def some_rows(value: Tensor) -> Shaped[Tensor, "rows *rest"]:
    """Return about 32 rows of a batch that can be read, spread over all of it, without a gradient."""
    return value.detach()[:: max(len(value) // _ROWS, 1)]


def sampled(values: Iterable[Tensor]) -> list[SampledInput]:
    """Return each tensor with a sample of its rows."""
    return [(each, rows_of(each)) for each in values]


class SeenInputs:
    """What the arguments of a module were like in training: mean and spread of numbers, frequencies of integers."""

    def __init__(self) -> None:
        self._numbers: dict[int, Tensor] = {}
        self._counts: dict[int, Tensor] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return what was noted, by position of the argument."""
        return {"numbers": dict(self._numbers), "counts": dict(self._counts), "shapes": dict(self._shapes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; tensors move to the device of the next batch."""
        self._numbers = dict(state["numbers"])
        self._counts = dict(state["counts"])
        self._shapes = dict(state["shapes"])

    def note(self, arguments: Sequence[SampledInput]) -> None:
        """Note a batch of the training."""
        for place, (value, rows) in enumerate(arguments):
            if rows is None:
                continue
            self._shapes[place] = tuple(value.shape[1:])
            if is_index(value):
                counts = _counted(rows)
                known = self._counts.get(place)
                self._counts[place] = counts if known is None else known.to(counts.device, non_blocking=True) + counts
            elif place and value.is_floating_point():
                now = torch.stack([rows.mean(), rows.square().mean()])
                known = self._numbers.get(place)
                self._numbers[place] = (
                    now if known is None else known.to(now.device, non_blocking=True).lerp(now, _KEEP)
                )

    def shift(self, arguments: Sequence[SampledInput]) -> Float[Tensor, ""] | None:
        """Return how far a batch of an evaluation is from the noted ones; None if there is nothing to compare.

        Returns:
            Largest over the arguments: of numbers behind the first argument, the distance of the means or the ratio of
            the deviations, in deviations of the training; of integers, ten times the fraction that would have to change
            for the same frequencies, less that of samples of this size.
        """
        found: list[Tensor] = []
        for place, (value, rows) in enumerate(arguments):
            # A sequence that is written token by token begins shorter than those of the training, and with others.
            if rows is None or self._shapes.get(place) != tuple(value.shape[1:]):
                continue
            if place in self._counts and is_index(value):
                counts = _counted(rows)
                known = self._counts[place].to(counts.device, non_blocking=True)
                apart = (counts / counts.sum() - known / known.sum()).abs().sum() / 2
                usual = ((known > 0).sum() / (2 * torch.pi * counts.sum())).sqrt()
                found.append(10 * (apart - usual))
            elif place in self._numbers and value.is_floating_point():
                mean, square = self._numbers[place].to(rows.device, non_blocking=True)
                spread = (square - mean.square()).clamp_min(1e-24).sqrt()
                deviation, center = torch.std_mean(rows, correction=0)
                found.append(torch.maximum((center - mean).abs(), deviation) / spread)
        return torch.stack(found).max() if found else None


def is_index(value: Tensor) -> bool:
    """Return whether a tensor holds tokens, indices or classes."""
    return not value.is_floating_point() and not value.is_complex() and value.dtype is not torch.bool


def _counted(rows: Float[Tensor, "rows columns"]) -> Float[Tensor, " bins"]:
    """Return how often each integer occurs."""
    places = rows.reshape(-1).long().remainder(_BINS)
    return rows.new_zeros(_BINS).index_add_(0, places, torch.ones_like(rows.reshape(-1)))
