"""`ask_again`: whether the output of an evaluation is random, or depends on the other samples of its batch.

A module is called again with a few of the samples that it has just got. It is asked once in a run, and only if nothing
in it can notice that: in eval mode, without hooks of others, with all of its attributes restored afterwards.
"""

import inspect
import random
import re
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch.checkpoint import RandomState
from fieldwatch.record.source_code import is_installed

ROWS = 4
"""Number of samples of the second forward: the last ones, since in a recurrent layer the first ones see no others."""
_ENOUGH = 8
"""Least number of samples of an evaluation's batch."""
_MOST_ENTRIES = 1 << 20
"""Entries of the samples above which a module is not asked."""
_MOST_PARAMETERS = 1 << 25
"""Parameters above which a module is not asked: its forward may take long."""
_MOST_BUFFERS = 1 << 20
"""Entries of all buffers above which a module is not asked, since they are copied."""
_RANDOM = 1e-3
"""Difference of two forwards of the same samples, relative to their size, above rounding."""
_OTHERS = 1e-2
"""Difference that the size of a batch makes, relative to the outputs, above the rounding of other kernels."""
_COARSE = 5e-2
"""The same for half types."""
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_CONTAINERS = (list, dict, set, OrderedDict)
_PLAIN = (bool, int, float, str, type(None))
_DROPOUT = re.compile(
    r"\b(?:F|functional|torch)\s*\.\s*(?:feature_)?(?:alpha_)?dropout[123]?d?\s*\(([^()]|\([^()]*\))*\)"
)
"""A call of dropout as a function, up to one level of brackets in its arguments."""


def ask_again(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: object
) -> dict[str, Any] | None:
    """Return what a second forward shows of an evaluation; None if the module cannot be asked.

    Args:
        module: module in eval mode, without gradients.
        args: its positional arguments.
        kwargs: its other arguments.
        output: what it has returned for them.

    Returns:
        ``random``: whether the same samples have other outputs; ``others``: whether samples have other outputs
        without the rest of the batch; ``inline``: class whose forward calls dropout as a function in both modes.
    """
    if not isinstance(output, Tensor) or not output.is_floating_point() or type(output) is not Tensor:
        return None
    count = len(output) if output.dim() else 0
    if count < _ENOUGH or not _may_be_asked(module):
        return None
    samples = _last_rows((*args, *kwargs.values()), count)
    if samples is None:
        return None
    few_args = samples[: len(args)]
    few_kwargs = dict(zip(kwargs, samples[len(args) :], strict=True))
    with torch.no_grad(), _as_before(module):
        try:
            first: object = module.forward(*few_args, **few_kwargs)
            second: object = module.forward(*few_args, **few_kwargs)
        except Exception:  # noqa: BLE001  user code: a module may insist on the size of its batch
            return None
    if not isinstance(first, Tensor) or not isinstance(second, Tensor) or first.shape != output[-ROWS:].shape:
        return None
    drawn = _apart(first, second) > _RANDOM
    half = output.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(output.device.type)
    others = not drawn and _apart(first, output.detach()[-ROWS:]) > (_COARSE if half else _OTHERS)
    return {"random": drawn, "others": others, "inline": inline_dropout(module) if drawn else ""}


def _may_be_asked(module: nn.Module) -> bool:
    """Return whether a further forward of a module leaves no trace."""
    if hasattr(module, "_orig_mod"):
        return False
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    parts = list(module.modules())
    if any(isinstance(part, torch.jit.ScriptModule) for part in parts):
        return False
    if any(part.training or _has_hooks(part, own=part is module) or _keeps_state(part) for part in parts):
        return False
    buffers = sum(buffer.numel() for buffer in module.buffers())
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return buffers <= _MOST_BUFFERS and parameters <= _MOST_PARAMETERS


def _has_hooks(part: nn.Module, *, own: bool) -> bool:
    """Return whether hooks would see the forward; those of the module itself are passed over."""
    hooks = part.__dict__
    return not own and bool(hooks["_forward_hooks"] or hooks["_forward_pre_hooks"])


def _keeps_state(part: nn.Module) -> bool:
    """Return whether a part has state that could not be restored: a generator of its own, or a tensor as a cache."""
    return any(isinstance(value, (*_GENERATORS, Tensor)) for value in part.__dict__.values())


def _last_rows(values: Sequence[Any], count: int) -> list[Any] | None:
    """Return arguments with the last samples only; None if it is not certain which dimension has the samples."""
    found: list[Any] = []
    entries = 0
    for value in values:
        if isinstance(value, _PLAIN):
            found.append(value)
            continue
        if type(value) not in (Tensor, nn.Parameter):
            return None
        tensor = cast("Tensor", value)
        if tensor.dim() and len(tensor) != count:
            return None
        found.append(tensor[-ROWS:] if tensor.dim() else tensor)
        entries += found[-1].numel()
    return found if 0 < entries <= _MOST_ENTRIES else None


@contextmanager
def _as_before(module: nn.Module) -> Generator[None]:
    """Restore the random generators and all attributes and buffers of a module and its parts."""
    generators = RandomState()
    state = generators.state_dict()
    attributes = [(part, dict(part.__dict__)) for part in module.modules()]
    contents = [
        (value, value.copy()) for _, names in attributes for value in names.values() if type(value) in _CONTAINERS
    ]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for part, names in attributes:
            part.__dict__.clear()
            part.__dict__.update(names)
        for value, before in contents:
            _restore(value, before)
        for buffer, before in buffers:
            if not torch.equal(buffer, before):
                buffer.copy_(before)
        generators.load_state_dict(state)


def _restore(value: Any, before: Any) -> None:
    """Give a container the entries that it had."""
    if isinstance(value, list):
        cast("list[Any]", value)[:] = before
    else:
        value.clear()
        value.update(before)


def _apart(one: Float[Tensor, "..."], other: Float[Tensor, "..."]) -> float:
    """Return the largest difference, relative to the largest entry; this reads the device, once in a run."""
    size = other.abs().amax().float().clamp_min(1e-30)
    apart = float((one.float() - other.float()).abs().amax() / size)
    return apart if apart == apart else 0.0  # noqa: PLR0124  outputs that are not finite are another fault


def inline_dropout(module: nn.Module) -> str:
    """Return the class of a part whose forward calls dropout as a function without its mode; empty if there is none."""
    for part in module.modules():
        forward = type(part).forward
        code = getattr(forward, "__code__", None)
        if code is None or is_installed(Path(code.co_filename)) or not any("dropout" in name for name in code.co_names):
            continue
        try:
            source = inspect.getsource(forward)
        # The source is not at hand, or was typed in.
        except (OSError, TypeError):
            continue
        for call in _DROPOUT.finditer(source):
            if "training" not in call.group():
                return type(part).__name__
    return ""
