"""Layout of a dashboard: tabs, and the charts on each of them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from fieldwatch.record import tags
from fieldwatch.record.catalogue import tag_pattern
from fieldwatch.record.metric import Metric


@dataclass(frozen=True, kw_only=True)
class Margin:
    """A curve with a shaded band around it.

    Attributes:
        value: tag of the curve.
        lower: tag of the band's lower bound.
        upper: tag of the band's upper bound.
    """

    value: str
    lower: str
    upper: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart, which shows either plain curves or curves with bands.

    Attributes:
        title: heading of the chart.
        tags: regular expressions; every matching tag becomes a curve.
        margins: curves with bands, as an alternative to ``tags``.

    Raises:
        ValueError: if both or neither of ``tags`` and ``margins`` are given.
    """

    title: str
    tags: tuple[str, ...] = ()
    margins: tuple[Margin, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.tags) == bool(self.margins):
            raise ValueError(
                f"chart '{self.title}' needs either tags or margins, got {len(self.tags)} tags and "
                f"{len(self.margins)} margins"
            )

    @classmethod
    def of(cls, title: str, *tags: str) -> Self:
        """Return a chart of exactly the given tags."""
        # Chart tags are regular expressions, in which a dot or bracket of a tag would have a meaning.
        return cls.matching(title, *map(re.escape, tags))

    @classmethod
    def matching(cls, title: str, *patterns: str) -> Self:
        """Return a chart of every tag that one of the regular expressions matches in full."""
        return cls(title=title, tags=tuple(f"^{pattern}$" for pattern in patterns))


@dataclass(frozen=True, kw_only=True)
class Tab:
    """A tab with one or more charts.

    Attributes:
        title: name of the tab.
        charts: one or more charts, in display order.
        closed: whether the tab is collapsed initially.

    Raises:
        ValueError: if ``charts`` is empty.
    """

    title: str
    charts: tuple[Chart, ...]
    closed: bool = False

    def __post_init__(self) -> None:
        if not self.charts:
            raise ValueError(f"tab '{self.title}' has no chart: add at least one, or remove the tab")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All tabs of a dashboard, in display order.

    Raises:
        ValueError: if two tabs have the same title.
    """

    tabs: tuple[Tab, ...]

    def __post_init__(self) -> None:
        titles = [tab.title for tab in self.tabs]
        if len(set(titles)) < len(titles):
            raise ValueError(f"tab titles must be unique, got {titles}: TensorBoard would show only one of the tabs")


def default_layout(catalogue: Iterable[Metric]) -> Layout:
    """Arrange the declared scalars: one tab per first path component of the tag, one chart per second component.

    ``Train/Loss/pixel`` and ``Train/Loss/clip`` share the chart ``Loss`` on the tab ``Train``; ``Train/PSNR`` has a
    separate chart there. All tags that match one pattern (``Loss/share_<term>``) share one chart. Bookkeeping metrics
    are skipped, because sinks never receive them.
    """
    # Dicts keep the order of declaration, which becomes the order of tabs and charts.
    tabs: dict[str, dict[str, list[str]]] = {}
    for metric in catalogue:
        if metric.kind == "scalar" and not tags.is_bookkeeping(metric.name):
            # Tag ``a/b/c`` belongs to chart ``b`` on tab ``a``; a tag without a slash belongs to tab ``Other``.
            first, _, rest = metric.name.rpartition("/")[0].partition("/") if "/" in metric.name else ("Other", "", "")
            charts = tabs.setdefault(first, {})
            charts.setdefault(rest or metric.name.rpartition("/")[2], []).append(tag_pattern(metric.name))
    return Layout(
        tabs=tuple(
            Tab(title=title, charts=tuple(Chart(title=name, tags=tuple(tags)) for name, tags in charts.items()))
            for title, charts in tabs.items()
        )
    )
