"""Options that the caller of any pipeline may choose: device, resume mode, mirror, sinks, profile."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict

import torch

from fieldwatch.base import InputError
from fieldwatch.checkpoint import CheckpointSelector, Retention
from fieldwatch.run.options import Declared, Guard, HangTimeout, Outputs, Saving
from fieldwatch.run.profile import Profile
from fieldwatch.run.ranks import Ranks
from fieldwatch.run.sinks import Sinks


class RunChoices(TypedDict, total=False):
    """Options of a run that the caller may choose; `run_options` converts them to the options of `Run`.

    Attributes:
        preset: configuration that the run's config was derived from.
        sinks: destinations of the rows besides the journal, or a function that creates them once the folder is locked.
        sink_names: names of further sinks, which ``fieldwatch resume`` enables again.
        log_every: number of steps between two summary lines of ``log.txt``.
        resume: "auto", "never", "must" or "start-over", see :class:`Saving`.
        resume_from: checkpoint to resume from: "last", "best" or a step.
        profile: when to attribute tensor memory to its owners.
        mirror: URL to which every checkpoint is copied; empty for none, or for the previous one of a resumed run.
        hang_timeout: seconds without a heartbeat after which the run counts as hung, "auto", or None for no watchdog.
        replay_within: seconds of training that the kept checkpoints may be apart, see :class:`Retention`.
        data_findings: what a check of the data found before the first step, see :class:`Declared`.
    """

    preset: Any
    sinks: Sinks
    sink_names: Sequence[str]
    log_every: int
    resume: Literal["auto", "never", "must", "start-over"]
    resume_from: CheckpointSelector
    profile: Profile | None
    mirror: str
    hang_timeout: HangTimeout
    replay_within: float
    data_findings: Sequence[Mapping[str, Any]]


class RunOptions(TypedDict):
    """Keyword arguments of `Run` besides its folder and config."""

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
    """Combine the options of a pipeline with those of the caller, which take precedence."""

    def chosen(*names: str) -> dict[str, Any]:
        # Only the given keys: an absent choice must not overwrite the pipeline's option with a default.
        return {name: value for name, value in choices.items() if name in names}

    saving = replace(saving or Saving(), **chosen("resume", "resume_from", "mirror"))
    if "replay_within" in choices:
        saving = replace(saving, keep=replace(saving.keep or Retention(), within=choices["replay_within"]))
    return RunOptions(
        saving=saving,
        guard=replace(guard or Guard(), **chosen("hang_timeout")),
        declared=replace(declared or Declared(), **chosen("preset", "data_findings")),
        outputs=replace(outputs or Outputs(), **chosen("sinks", "sink_names", "log_every")),
        profile=choices.get("profile"),
    )


def choose_device(wanted: str) -> torch.device:
    """Return the device to train on; "auto" uses CUDA if available.

    Raises:
        InputError: CUDA is requested but not available, or there are fewer GPUs than local ranks.
    """
    ranks = Ranks.of_process()
    # An explicit choice must not silently fall back to the CPU.
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch finds no CUDA device; use --device auto or --device cpu")
    if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()):
        return torch.device("cuda") if ranks.alone else rank_gpu()
    return torch.device("cpu")


def rank_gpu() -> torch.device:
    """Return the GPU of this rank, and make it the current device; every local rank uses a different one.

    Raises:
        InputError: there are fewer GPUs than processes on this machine.
    """
    # torchrun sets LOCAL_RANK to the index of the process on this machine.
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise InputError(
            f"process {local_rank + 1} on this machine has no GPU, since there are only {count}: use "
            f"--nproc-per-node {count}, or --device cpu"
        )
    # NCCL and tensors created on "cuda" without an index use the current device.
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
