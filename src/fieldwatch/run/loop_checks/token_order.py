"""`TokenOrder`: where tokens stand in sequences, in training and in evaluations."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fieldwatch.record import tags
from fieldwatch.run.loop_checks.input_samples import SampledInput, is_index

_BINS = 512
"""Number of bins in which tokens are counted."""
_ENOUGH = 64
"""Number of training sequences after which a token that began all of them counts as their start."""
_SEQUENCE = 2
"""Dimensions of a batch of sequences of tokens."""


class TokenOrder:
    """Knows the padding and the start of the training's sequences without being told which tokens they are.

    Padding at the end is a token that is repeated, and never followed by another; padding at the front is never
    preceded by another. Sequences that come with a mask are left out: a model that sees it may be padded anywhere.
    """

    def __init__(self) -> None:
        self._counts: Float[Tensor, "4 bins"] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return what was counted."""
        return {"counts": self._counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; the counts move to the device of the next batch."""
        self._counts = state["counts"]

    def note(self, arguments: Sequence[SampledInput]) -> None:
        """Note a batch of the training."""
        tokens = _sequences(arguments)
        if tokens is None or tokens.shape[1] < 2:
            return
        before, after, changes = _neighbors(tokens)
        counts = changes.new_zeros(4, _BINS)
        counts[0].index_add_(0, before, changes)
        counts[1].index_add_(0, after, changes)
        counts[2].index_add_(0, before, 1 - changes)
        counts[3].index_add_(0, tokens[:, 0], changes.new_ones(len(tokens)))
        known = self._counts
        self._counts = counts if known is None else known.to(counts.device, non_blocking=True) + counts

    def differences(self, item: str, arguments: Sequence[SampledInput]) -> dict[str, Tensor]:
        """Return which share of an evaluation's sequences is padded on the other side, or lacks the start.

        Args:
            item: name of the module.
            arguments: its arguments in the evaluation.

        Returns:
            Values by metric name; empty if there is nothing to compare.
        """
        tokens = _sequences(arguments)
        if tokens is None or self._counts is None:
            return {}
        followed, preceded, repeated, first = self._counts.to(tokens.device, non_blocking=True)
        starts = first.max() == first.sum().clamp_min(_ENOUGH)
        found = {tags.EVALUATION_START.tag(item): (starts & (first[tokens[:, 0]] == 0)).float().mean()}
        if tokens.shape[1] > 1:
            before, after, changes = _neighbors(tokens)
            at_end = (repeated > 0) & (followed == 0) & (preceded > 0)
            in_front = (repeated > 0) & (preceded == 0) & (followed > 0)
            misplaced: Bool[Tensor, " pairs"] = (at_end[before] | in_front[after]) & (changes > 0)
            rows = misplaced.view(len(tokens), -1).any(dim=1)
            found[tags.EVALUATION_PADDING.tag(item)] = rows.float().mean()
        return found


def _sequences(arguments: Sequence[SampledInput]) -> Int[Tensor, "rows columns"] | None:
    """Return the bins of the tokens if the first argument is a batch of sequences without a mask, otherwise None."""
    if not arguments:
        return None
    value, rows = arguments[0]
    if rows is None or value.dim() != _SEQUENCE or not is_index(value):
        return None
    if any(other.shape == value.shape and not other.is_floating_point() for other, _ in arguments[1:]):
        return None
    return rows.long().remainder(_BINS)


def _neighbors(
    tokens: Int[Tensor, "rows columns"],
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"], Float[Tensor, " pairs"]]:
    """Return each token, the one behind it, and 1 where they differ."""
    before = tokens[:, :-1].reshape(-1)
    after = tokens[:, 1:].reshape(-1)
    return before, after, (before != after).to(torch.float32)
