"""Outputs of an objective: loss terms, alone or in an object, and their backward pass."""

from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fieldwatch.measure import Terms


@runtime_checkable
class HasTerms(Protocol):
    """An object with loss terms, which an objective may return instead of plain :class:`Terms`."""

    @property
    def terms(self) -> Terms:
        """The loss terms."""
        ...


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """Base class for the result of an objective whose loop needs more than the loss terms. Add fields in a subclass.

    Attributes:
        terms: loss terms; detached from their graph once ``step.backward`` returns.
        sample_loss: loss per sample, shape ``[samples]``; None if it is not measured.
    """

    terms: Terms
    sample_loss: Float[Tensor, " samples"] | None = None


def backpropagate(total: Float[Tensor, ""]) -> None:
    """Backpropagate a total loss, accumulating into the gradients of the parameters."""
    total.backward()  # pyright: ignore[reportUnknownMemberType]  torch leaves its parameters without types


def terms_of(output: object) -> Terms:
    """Return the loss terms of an objective's output, which is either terms or an object with terms.

    Raises:
        TypeError: it is something else, such as a loss alone.
    """
    if isinstance(output, Terms):
        return output
    terms: object = getattr(output, "terms", None)
    if not isinstance(terms, Terms):
        raise TypeError(
            f"expected loss terms, got a {type(output).__name__}: give each term a name and a weight, such as "
            "Terms(loss=(1.0, loss))"
        )
    return terms


def without_graph(output: Any) -> Any:
    """Return an objective's output with detached terms; other objects than dataclasses are returned unchanged."""
    if isinstance(output, Terms):
        return output.detach()
    if is_dataclass(output) and not isinstance(output, type):
        return replace(cast("Any", output), terms=cast("HasTerms", output).terms.detach())
    return output
