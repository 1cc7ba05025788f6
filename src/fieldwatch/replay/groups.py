"""Distributions of the parameters and gradients of every group, before and after an update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.measure import ParameterGroups
from fieldwatch.replay.operation import number_of

BINS = 40
QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

Values = NDArray[np.float64]


@dataclass(frozen=True)
class GroupValues:
    """Copy of the entries of every group.

    Attributes:
        values: all entries of each group, concatenated, by group.
    """

    values: Mapping[str, Values]

    @classmethod
    def of_parameters(cls, watched: ParameterGroups) -> "GroupValues":
        """Copy the parameters."""
        watched.rescan()
        return cls({name: _joined(watched.read(name)) for name in watched.names()})

    @classmethod
    def of_gradients(cls, watched: ParameterGroups) -> "GroupValues":
        """Copy the gradients; groups without gradients are absent."""
        gradients = {
            name: [p.grad for p in watched.read(name) if p.grad is not None and not p.grad.is_sparse]
            for name in watched.names()
        }
        return cls({name: _joined(tensors) for name, tensors in gradients.items() if tensors})

    def norms(self) -> dict[str, float | str]:
        """Return the Euclidean norm of each group."""
        return {name: number_of(float(np.linalg.norm(values))) for name, values in self.values.items()}

    def not_finite(self) -> list[str]:
        """Return the groups with entries that are not finite."""
        return [name for name, values in self.values.items() if not np.isfinite(values).all()]

    def change_to(self, after: "GroupValues") -> dict[str, float | str]:
        """Return the Euclidean norm of the change of each group; groups whose size has changed are absent."""
        return {
            name: number_of(float(np.linalg.norm(after.values[name] - values)))
            for name, values in self.values.items()
            if name in after.values and len(after.values[name]) == len(values)
        }


def plain_groups(before: GroupValues, gradients: GroupValues | None, after: GroupValues) -> list[dict[str, Any]]:
    """Return histograms and quantiles of every group before and after the update, and of its gradient."""
    change = before.change_to(after)
    rows: list[dict[str, Any]] = []
    for name, values in before.values.items():
        later = after.values.get(name)
        edges = _edges(values if later is None else np.concatenate([values, later]))
        row: dict[str, Any] = {"group": name, "edges": edges.tolist(), "before": _distribution(values, edges)}
        if later is not None:
            row["after"] = _distribution(later, edges)
        if gradients is not None and name in gradients.values:
            gradient = gradients.values[name]
            gradient_edges = _edges(gradient)
            row["gradient_edges"] = gradient_edges.tolist()
            row["gradient"] = _distribution(gradient, gradient_edges)
        if name in change:
            row["change"] = change[name]
        rows.append(row)
    return rows


def _joined(tensors: list[Tensor]) -> Values:
    flat = [tensor.detach().reshape(-1).to("cpu").double().numpy() for tensor in tensors]
    # A copy, since the tensors change in place.
    return np.concatenate(flat) if flat else np.zeros(0)


def _edges(values: Values) -> Values:
    finite = values[np.isfinite(values)]
    return np.histogram_bin_edges(finite, BINS) if len(finite) else np.linspace(0.0, 1.0, BINS + 1)


def _distribution(values: Values, edges: Values) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    quantiles = np.quantile(finite, QUANTILES).tolist() if len(finite) else []
    return {
        "entries": len(values),
        "nan": int(np.isnan(values).sum()),
        "inf": int(np.isinf(values).sum()),
        "norm": number_of(float(np.linalg.norm(values))),
        "mean": float(finite.mean()) if len(finite) else None,
        "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=False)),
        "counts": np.histogram(finite, edges)[0].tolist(),
    }
