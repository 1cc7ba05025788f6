"""Findings about sets of normal maps, as all their checks return them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

MIN_COVERED_SHARE = 0.95
"""Fraction of a mask that normals, or the visual hull, have to cover."""
MIN_VIEWS = 4
"""Views from which a single one can be compared with the others; fewer have no usual agreement."""


@dataclass(frozen=True, kw_only=True)
class NormalCheck:
    """A problem found in a set of normal maps.

    Attributes:
        name: name of the check: `rotation`, `no_normals`, `unit_length`, `empty_mask`, `specks`, `not_finite`,
            `facing`, `axes`, `turned`, `overlap`, `holes`, `hull`, `silhouettes`, `pixel_center`, `cross_view`, `depth`
            or `noise`.
        severity: `"error"` (training would fail or learn a wrong surface), `"warning"` (worth inspecting) or `"note"`.
        message: description of the problem with numbers.
        remedy: suggested fix.
        correction: arguments of the reader with which the files are read rightly; empty if they cannot be.
    """

    name: str
    severity: Literal["note", "warning", "error"]
    message: str
    remedy: str
    correction: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict[str, "str | tuple[str, ...]"])


def of_views(  # noqa: PLR0913 - the parts of a finding
    shares: dict[str, float],
    wrong: Callable[[float], bool],
    *,
    name: str,
    severity: Literal["warning", "error"],
    message: str,
    remedy: str,
    worst: Callable[..., str] = max,
) -> NormalCheck | None:
    """Return a finding about the views with wrong values that names the worst one, or None."""
    names = [worst_view for worst_view, share in shares.items() if wrong(share)]
    if not names:
        return None
    worst_view = worst(names, key=lambda name_of_view: shares[name_of_view])
    text = f"in {len(names)} of {len(shares)} views, {shares[worst_view]:.1%} {message} (worst view: {worst_view!r})."
    return NormalCheck(name=name, severity=severity, message=text, remedy=remedy)


def listed(names: Sequence[str]) -> str:
    """Join the first five names for a message; append the count if there are more."""
    first = ", ".join(names[:5])
    return f"{first}, ... ({len(names)})" if len(names) > 5 else first
