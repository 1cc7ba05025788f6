"""`Job`: a training that is ready to start."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training whose input has been read and checked; nothing has been written yet.

    Attributes:
        headline: one-line description of the model and its data.
        total: total number of steps.
        train: ``train(folder, choices)`` trains in a folder, or continues the run found there, and returns an
            `Outcome`. ``choices`` is a `RunChoices`, which `run_options` converts to the options of `Run`.
        device: device of the training: ``cpu``, ``cuda``, ``cuda:1``.
        notes: messages to the user, such as changes made to the input.
        progress_tags: content of the progress bar: tag to text, with ``{}`` for the value.
        references: baseline metrics that need no training, by tag; printed next to the final metrics.
        check: ``check(preset)`` checks data and settings in about a second and returns the problems as `DataFinding`,
            like ``fieldwatch doctor``; an error among them keeps ``fieldwatch train`` from starting. ``preset`` is the
            config from which the settings were derived, or None. Without a function, nothing is checked.
        window: ``window(port)`` opens a window that shows the model while it trains, for ``--viewer``: a context
            manager of an object with ``address`` and ``train``, which is called in place of the one above. The training
            computes the same numbers with it. None if the pipeline has no window.
    """

    headline: str
    total: int
    # Not typed more precisely: importing `Outcome` and `RunChoices` would load torch.
    train: Callable[..., Any]
    device: str = "cpu"
    notes: Sequence[str] = ()
    progress_tags: Mapping[str, str] = field(default_factory=lambda: {"Loss/total": "loss {}"})
    references: Mapping[str, float] = field(default_factory=dict[str, float])
    # A `DataFinding` belongs to the commands, which import this module.
    check: Callable[[Any], Sequence[Any]] | None = None
    window: Callable[[int], AbstractContextManager[Any]] | None = None
