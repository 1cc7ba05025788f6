"""What is chosen about a run by whoever starts it, whatever is trained."""

from typing import Any, Literal, TypedDict

import torch

from fieldwatch.run.profile import Profile
from fieldwatch.run.sinks import Sinks

Device = Literal["auto", "cpu", "cuda"]
"""Where to train; "auto" takes CUDA where there is any."""


class RunChoices(TypedDict, total=False):
    """What a caller may choose about the run itself, as `Run` takes it.

    Attributes:
        preset: the configuration that this one was derived from.
        sinks: where rows go besides the journal, or what makes them once the folder is taken.
        resume: "auto", "never" or "must".
        profile: when to account for tensor memory.
    """

    preset: Any
    sinks: Sinks
    resume: Literal["auto", "never", "must"]
    profile: Profile | None


def choose_device(wanted: str) -> torch.device:
    """The device to train on; "auto" takes CUDA where there is any.

    Raises:
        ValueError: CUDA is asked for and there is none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda was asked for, but torch finds no CUDA device: use --device auto or cpu")
    return torch.device("cuda" if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()) else "cpu")
