"""What is chosen about a run by whoever starts it, whatever is trained."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict

import torch

from fieldwatch.base import InputError
from fieldwatch.run.options import Declared, Guard, HangTimeout, Outputs, Saving
from fieldwatch.run.profile import Profile
from fieldwatch.run.ranks import Ranks
from fieldwatch.run.sinks import Sinks


class RunChoices(TypedDict, total=False):
    """What a caller may choose about the run itself; `run_options` sorts it into the options of `Run`.

    Attributes:
        preset: the configuration that this one was derived from.
        sinks: where rows go besides the journal, or what makes them once the folder is taken.
        sink_names: names of further sinks, which ``fieldwatch resume`` turns on again.
        resume: "auto", "never" or "must".
        profile: when to account for tensor memory.
        mirror: a URL to which every checkpoint is copied; empty for none, or for the one that this user gave before.
        hang_timeout: seconds without a sign of life after which it counts as hung, "auto", or None for no watch.
    """

    preset: Any
    sinks: Sinks
    sink_names: Sequence[str]
    resume: Literal["auto", "never", "must", "start-over"]
    profile: Profile | None
    mirror: str
    hang_timeout: HangTimeout


class RunOptions(TypedDict):
    """The options of `Run` besides its folder and config."""

    saving: Saving
    guard: Guard
    declared: Declared
    outputs: Outputs
    profile: Profile | None


def run_options(
    choices: RunChoices,
    *,
    saving: Saving | None = None,
    guard: Guard | None = None,
    declared: Declared | None = None,
    outputs: Outputs | None = None,
) -> RunOptions:
    """Combine the options of a pipeline with what the caller chose; the caller's choice wins."""

    def chosen(*names: str) -> dict[str, Any]:
        # Only what the caller gave: an absent choice must not overwrite the pipeline's with a default.
        return {name: value for name, value in choices.items() if name in names}

    return RunOptions(
        saving=replace(saving or Saving(), **chosen("resume", "mirror")),
        guard=replace(guard or Guard(), **chosen("hang_timeout")),
        declared=replace(declared or Declared(), **chosen("preset")),
        outputs=replace(outputs or Outputs(), **chosen("sinks", "sink_names")),
        profile=choices.get("profile"),
    )


def choose_device(wanted: str) -> torch.device:
    """The device to train on; "auto" takes CUDA where there is any.

    Raises:
        InputError: CUDA is asked for and there is none, or not one for each of the ranks.
    """
    ranks = Ranks.of_process()
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda was asked for, but torch finds no CUDA device: use --device auto or cpu")
    if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()):
        return torch.device("cuda") if ranks.alone else rank_gpu()
    return torch.device("cpu")


def rank_gpu() -> torch.device:
    """The GPU of this rank, one for each that torchrun started on this machine; it becomes the current device.

    Raises:
        InputError: there are fewer.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise InputError(
            f"process {local_rank + 1} on this machine has no GPU, there are {count}: use --nproc-per-node {count}, or "
            "--device cpu"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
