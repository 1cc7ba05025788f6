"""`SimpleModels`: how well a linear model and nearest neighbors predict the targets of a module from its inputs.

A network that ends below them has learned too little of its own data, whatever its loss says. Inputs and targets are
those of the first measured steps; the targets are known from the gradient of the module's output.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.record import tags
from fieldwatch.run.loop_checks.input_samples import rows_of

ENOUGH = 384
"""Number of samples from which on the models are fitted in an evaluation: half of them are for the test."""
MANY = 768
"""Number of samples from which on they are fitted without waiting for an evaluation."""
_MOST = 1024
"""Number of samples that are kept at most."""
_MOST_OUTPUTS = 64
"""Number of columns of an output from which on it is not predicted."""
_NEIGHBORS = 5
_RIDGE = 1e-2
"""Weight of the squared coefficients of the linear model, times the number of samples."""
_EQUAL = 1e-9
"""Share of a target's variance that a column leaves unexplained at most if both are equal but for rounding."""
_SAME = 1e-6
"""Mean squared distance, in deviations, of inputs that count as the same sample."""


class SimpleModels:
    """Keeps samples of the first batches of a module, and fits the models once; no value is read from the device."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._sizes: tuple[int, int] = (0, 0)
        self._done = False

    def state_dict(self) -> dict[str, Any]:
        """Return what was kept."""
        return {"parts": list(self._parts), "sizes": self._sizes, "done": self._done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; tensors move to the device of the next batch."""
        self._parts = list(state["parts"])
        self._sizes = (int(state["sizes"][0]), int(state["sizes"][1]))
        self._done = bool(state["done"])

    def listen(self, rows: Float[Tensor, "rows columns"], output: Tensor) -> None:
        """Keep the samples of a batch with their targets, as soon as the backward pass tells these.

        Args:
            rows: sample of the inputs, as `rows_of` returns it.
            output: output of the module, ``[batch, columns]`` or ``[batch]``.
        """
        if self._done or output.dim() not in (1, 2) or not output.requires_grad or self._count() >= _MOST:
            return
        if output.dim() == 2 and output.shape[1] > _MOST_OUTPUTS:
            return
        made = rows_of(output)
        if made is None or len(made) != len(rows):
            return
        hook = _KeepTargets(models=self, rows=rows.clone(), made=made.clone(), entries=output.numel())
        cast("Any", output).register_hook(hook)

    def keep(self, rows: Float[Tensor, "rows columns"], made: Tensor, error: Tensor) -> None:
        """Keep samples: inputs, outputs, and errors as if the loss were a mean of squares."""
        sizes = (rows.shape[1], made.shape[1])
        if self._done or (self._parts and self._sizes != sizes):
            return
        self._sizes = sizes
        self._parts.append(torch.cat((rows, made, error), dim=1))

    def measure(self, name: str, *, least: int = ENOUGH) -> dict[str, Tensor]:
        """Fit the models once there are enough samples, and return how well they predict, by metric name."""
        if self._done or self._count() < least:
            return {}
        self._done = True
        device = self._parts[-1].device
        samples = torch.cat([part.to(device, non_blocking=True) for part in self._parts])
        columns, outputs = self._sizes
        self._parts = []
        made = samples[:, columns : columns + outputs]
        return _judge(name, samples[:, :columns], made, samples[:, columns + outputs :])

    def _count(self) -> int:
        return sum(len(part) for part in self._parts)


@dataclass(frozen=True, kw_only=True)
class _KeepTargets:
    """Tensor hook that keeps the errors of an output, and changes nothing."""

    models: SimpleModels
    rows: Float[Tensor, "rows columns"]
    made: Float[Tensor, "rows outputs"]
    entries: int

    def __call__(self, gradient: Tensor) -> None:
        """Keep a gradient."""
        with torch.no_grad():
            rows = rows_of(gradient)
            if rows is not None and rows.shape == self.made.shape:
                self.models.keep(self.rows, self.made, rows * (self.entries / 2))


def _judge(
    name: str,
    inputs: Float[Tensor, "samples columns"],
    made: Float[Tensor, "samples outputs"],
    error: Float[Tensor, "samples outputs"],
) -> dict[str, Tensor]:
    """Return the scores of both models on the samples of every other place, fitted on the others."""
    scaled = _standardized(inputs)
    known = scaled[0::2]
    asked = scaled[1::2]
    # By products of the samples, equal ones would not have a distance of 0.
    distance = torch.cdist(asked, known, compute_mode="donot_use_mm_for_euclid_dist").square() / scaled.shape[1]
    near, order = distance.topk(_NEIGHBORS, dim=1, largest=False)
    # A sample that was drawn twice is no test; nor is one without a gradient, whose target is unknown.
    fresh = ((near[:, 0] > _SAME) & (error[1::2].abs().amax(dim=1) > 0)).float()
    number = fresh.sum()
    found = {tags.SIMPLE_COUNT.tag(name): number}
    targets = made - error
    # What restores its input, such as an autoencoder, has the same columns; MPS lacks the precision.
    if targets.shape[1] < inputs.shape[1] and targets.device.type != "mps":
        found[tags.TARGETS_GIVEN.tag(name)] = _given(inputs, targets)
    linear = _linear(known, targets[0::2], asked)
    close = targets[0::2][order].mean(dim=1)
    found[tags.LINEAR_EXPLAINED.tag(name)] = _explained(linear, targets[1::2], fresh)
    found[tags.NEAREST_EXPLAINED.tag(name)] = _explained(close, targets[1::2], fresh)
    if made.shape[1] > 1:
        # The gradient of a cross-entropy is negative at the right class only.
        classes = error.argmin(dim=1)
        codes = torch.nn.functional.one_hot(classes, made.shape[1]).float()
        right = classes[1::2]
        votes = codes[0::2][order].sum(dim=1)
        scores = _linear(known, codes[0::2], asked)
        found[tags.LINEAR_HITS.tag(name)] = _share(scores.argmax(dim=1) == right, fresh)
        found[tags.NEAREST_HITS.tag(name)] = _share(votes.argmax(dim=1) == right, fresh)
    return found


def _given(inputs: Float[Tensor, "samples columns"], targets: Float[Tensor, "samples outputs"]) -> Float[Tensor, ""]:
    """Return the share of the columns of the targets that are columns of the inputs, whatever their unit."""
    given, wanted = (_standardized(each.double()) for each in (inputs, targets))
    correlation = (given.T @ wanted / len(inputs)).abs().amax(dim=0)
    return (1 - correlation.square() < _EQUAL).float().mean()


def _standardized(values: Float[Tensor, "samples columns"]) -> Float[Tensor, "samples columns"]:
    """Return values with mean 0 and deviation 1 in each column; a constant column is 0."""
    deviation, mean = torch.std_mean(values, dim=0, correction=0)
    return (values - mean) / deviation.clamp_min(1e-12)


def _linear(
    known: Float[Tensor, "samples columns"], targets: Float[Tensor, "samples outputs"], asked: Tensor
) -> Float[Tensor, "asked outputs"]:
    """Return the predictions of a ridge regression."""
    mean = targets.mean(dim=0)
    square = known.T @ known
    # Without a check of the result, which would wait for the device.
    penalty = _RIDGE * len(known) * torch.eye(len(square), device=known.device)
    solved: Tensor = cast("Any", torch.linalg).solve_ex(square + penalty, known.T @ (targets - mean))[0]
    return asked @ solved + mean


def _explained(
    predicted: Float[Tensor, "asked outputs"], targets: Float[Tensor, "asked outputs"], fresh: Float[Tensor, " asked"]
) -> Float[Tensor, ""]:
    """Return the share of the variance of the targets that predictions explain."""
    weight = fresh[:, None]
    number = fresh.sum().clamp_min(1)
    mean = (targets * weight).sum(dim=0) / number
    left = ((predicted - targets).square() * weight).sum()
    return 1 - left / ((targets - mean).square() * weight).sum().clamp_min(1e-30)


def _share(right: Tensor, fresh: Float[Tensor, " asked"]) -> Float[Tensor, ""]:
    return (right.float() * fresh).sum() / fresh.sum().clamp_min(1)
