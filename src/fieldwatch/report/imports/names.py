"""Names of an imported run: those of the source, except the loss and the names that the user maps."""

from collections.abc import Collection, Mapping, Sequence

from fieldwatch.record import tags
from fieldwatch.report.imports.source import BadSource

USUAL_LOSSES = (
    "loss/total",
    "loss",
    "train/loss",
    "train_loss",
    "loss/train",
    "training/loss",
    "training_loss",
    "train/total_loss",
    "train_total_loss",
    "total_loss",
    "train/loss_step",
    "train_loss_step",
    "train/loss_epoch",
    "train_loss_epoch",
    "losses/total",
    "loss_train",
)
"""Usual names of the training loss, in lower case; the first that is recorded is taken."""


def recorded_names(names: Collection[str], mapped: Sequence[str] = ()) -> dict[str, str]:
    """Return the name in the record for each name of the source.

    Args:
        names: names of the source.
        mapped: the user's choices, each ``NAME=NEW``.

    Raises:
        BadSource: a choice has another form or names nothing that was recorded, or two series would have one name.
    """
    chosen = dict(_pair(each, names) for each in mapped)
    recorded = {name: chosen.get(name, name) for name in names}
    loss = usual_loss(names)
    # A user who chose the loss, or a name for this series, knows better.
    if loss is not None and loss not in chosen and tags.TOTAL not in recorded.values():
        recorded[loss] = tags.TOTAL
    _refuse_duplicates(recorded)
    return recorded


def usual_loss(names: Collection[str]) -> str | None:
    """Return the name of the training loss, if it has one of the usual names."""
    by_lower = {name.lower(): name for name in names}
    return next((by_lower[usual] for usual in USUAL_LOSSES if usual in by_lower), None)


def _pair(choice: str, names: Collection[str]) -> tuple[str, str]:
    # The name of the source may contain "=", a name of our metrics does not.
    name, equals, new = choice.rpartition("=")
    if not equals or not name or not new:
        raise BadSource(f"--map {choice}: expected NAME=NEW, such as --map train/loss={tags.TOTAL}")
    if name not in names:
        known = ", ".join(sorted(names))
        raise BadSource(f"--map {choice}: the run recorded no {name!r}: expected one of {known}")
    return name, new


def _refuse_duplicates(recorded: Mapping[str, str]) -> None:
    sources: dict[str, str] = {}
    for name, new in recorded.items():
        if new in sources:
            raise BadSource(
                f"{sources[new]!r} and {name!r} would both be recorded as {new!r}: choose another name for one of them "
                f"with --map {name}=NEW"
            )
        sources[new] = name
