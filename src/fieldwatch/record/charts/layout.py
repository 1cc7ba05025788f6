"""Which charts stand on which tab of a dashboard."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from fieldwatch.record import tags
from fieldwatch.record.catalogue import tag_pattern
from fieldwatch.record.metric import Metric


@dataclass(frozen=True, kw_only=True)
class Margin:
    """A curve with a band around it.

    Attributes:
        value: tag of the curve.
        lower: tag of the band's lower edge.
        upper: tag of the band's upper edge.
    """

    value: str
    lower: str
    upper: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart: several curves, or curves with bands.

    Attributes:
        title: what stands above it.
        tags: regular expressions; each tag that one of them matches is a curve.
        margins: curves with bands; instead of ``tags``.

    Raises:
        ValueError: it names both or neither.
    """

    title: str
    tags: tuple[str, ...] = ()
    margins: tuple[Margin, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.tags) == bool(self.margins):
            raise ValueError(
                f"chart '{self.title}' came with {len(self.tags)} tags and {len(self.margins)} margins: name either"
            )

    @classmethod
    def of(cls, title: str, *tags: str) -> Self:
        """One chart with exactly these tags on it."""
        return cls.matching(title, *map(re.escape, tags))

    @classmethod
    def matching(cls, title: str, *patterns: str) -> Self:
        """One chart with every tag that one of the regular expressions describes in full."""
        return cls(title=title, tags=tuple(f"^{pattern}$" for pattern in patterns))


@dataclass(frozen=True, kw_only=True)
class Tab:
    """One tab of charts.

    Attributes:
        title: its name.
        charts: at least one.
        closed: whether it starts folded.

    Raises:
        ValueError: there is no chart.
    """

    title: str
    charts: tuple[Chart, ...]
    closed: bool = False

    def __post_init__(self) -> None:
        if not self.charts:
            raise ValueError(f"tab '{self.title}' has no chart: give it one, or leave the tab out")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All tabs, in order.

    Raises:
        ValueError: two tabs share a title.
    """

    tabs: tuple[Tab, ...]

    def __post_init__(self) -> None:
        titles = [tab.title for tab in self.tabs]
        if len(set(titles)) < len(titles):
            raise ValueError(f"tabs {titles} share a title: TensorBoard would show only one of them")


def default_layout(catalogue: Iterable[Metric]) -> Layout:
    """Arrange the declared scalars: one tab per first path part of the tag, one chart per next part.

    ``Train/Loss/pixel`` and ``Train/Loss/clip`` share the chart ``Loss`` on the tab ``Train``; ``Train/PSNR`` has a
    chart of its own there; the tags that one pattern (``Loss/share_<term>``) stands for share one chart. Bookkeeping
    columns are left out, as they are not shown.
    """
    tabs: dict[str, dict[str, list[str]]] = {}
    for metric in catalogue:
        if metric.kind == "scalar" and not tags.is_bookkeeping(metric.name):
            # Tag ``a/b/c`` goes on tab ``a`` in chart ``b``; a tag without a slash goes on the tab ``Other``.
            first, _, rest = metric.name.rpartition("/")[0].partition("/") if "/" in metric.name else ("Other", "", "")
            charts = tabs.setdefault(first, {})
            charts.setdefault(rest or metric.name.rpartition("/")[2], []).append(tag_pattern(metric.name))
    return Layout(
        tabs=tuple(
            Tab(title=title, charts=tuple(Chart(title=name, tags=tuple(tags)) for name, tags in charts.items()))
            for title, charts in tabs.items()
        )
    )
