"""The catalogue of all metrics that a run may record, looked up by recorded name."""

import difflib
import re
from collections.abc import Iterable, Iterator

from fieldwatch.record.metric import Metric

# A placeholder such as ``<term>`` matches one or more characters other than a slash.
_PLACEHOLDER = re.compile(r"<[^<>/]+>")


class DuplicateMetric(ValueError):  # noqa: N818  named after the finding
    """Raised when one name is declared twice."""


class UndeclaredMetric(LookupError):  # noqa: N818  named after the finding
    """Raised when no metric declares a recorded name."""


class Catalogue:
    """A collection of declared metrics, looked up by exact name first, then by ``<...>`` pattern.

    If several patterns match a name, the one with the most literal characters wins: ``Gradients/update_ratio_<group>``
    takes precedence over ``Gradients/<group>_norm``. Results are cached, so a repeated lookup costs one dict access.

    Args:
        metrics: declared metrics, in the order in which they are listed and documented.

    Raises:
        DuplicateMetric: if a name is declared twice.
    """

    def __init__(self, metrics: Iterable[Metric] = ()) -> None:
        self._metrics = tuple(metrics)
        # Holds the exact names at first; later also caches the results of pattern lookups.
        self._by_name: dict[str, Metric | None] = {}
        for metric in self._metrics:
            if metric.name in self._by_name:
                raise DuplicateMetric(f"metric '{metric.name}' is declared twice: declare each tag in one place only")
            self._by_name[metric.name] = metric
        patterns = [metric for metric in self._metrics if _PLACEHOLDER.search(metric.name)]
        # Longest literal text first: the most specific pattern wins.
        patterns.sort(key=lambda metric: len(_PLACEHOLDER.sub("", metric.name)), reverse=True)
        self._patterns = [(re.compile(tag_pattern(metric.name)), metric) for metric in patterns]

    def find(self, name: str) -> Metric | None:
        """Return the metric that declares ``name``, or None."""
        # Misses are cached too: a loop may look up the same undeclared name at every step.
        if name not in self._by_name:
            self._by_name[name] = next((metric for regex, metric in self._patterns if regex.fullmatch(name)), None)
        return self._by_name[name]

    def require(self, name: str) -> Metric:
        """Return the metric that declares ``name``.

        Raises:
            UndeclaredMetric: if no metric matches; the message lists the closest declared names.
        """
        metric = self.find(name)
        if metric is None:
            nearest = difflib.get_close_matches(name, [metric.name for metric in self._metrics], n=3, cutoff=0.5)
            hint = (
                f"nearest declared: {', '.join(repr(name) for name in nearest)}"
                if nearest
                else "nothing similar is declared"
            )
            raise UndeclaredMetric(f"metric '{name}' is not declared ({hint}): add Metric(name='{name}', ...) once")
        return metric

    def markdown(self) -> str:
        """Render the metric reference as Markdown: one table per top-level group, in the order of declaration."""
        groups: dict[str, list[Metric]] = {}
        for metric in self._metrics:
            groups.setdefault(metric.name.split("/", 1)[0], []).append(metric)
        return "\n".join(_table(group, metrics) for group, metrics in groups.items())

    def __add__(self, other: "Catalogue") -> "Catalogue":
        return Catalogue((*self._metrics, *other))

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None


def tag_pattern(name: str) -> str:
    """Return a regular expression, anchored at its end, that matches every tag of a declared name."""
    # TensorBoard matches chart patterns from the start of a tag, so only the end needs an anchor.
    return "[^/]+".join(re.escape(part) for part in _PLACEHOLDER.split(name)) + "$"


def _table(group: str, metrics: list[Metric]) -> str:
    head = "| Tag | Unit | Better | Axis | Meaning | Healthy |\n|---|---|---|---|---|---|"
    rows = [
        f"| `{metric.name}` | {metric.unit or '-'} | {metric.better} | {_axis(metric)} "
        f"| {_cell(metric.meaning)} | {_cell(metric.expected)} |"
        for metric in metrics
    ]
    return "\n".join([f"## {group}", "", head, *rows, ""])


def _axis(metric: Metric) -> str:
    return metric.axis if metric.kind == "scalar" else f"{metric.axis} ({metric.kind})"


def _cell(text: str) -> str:
    # A pipe or newline would end the table cell.
    return text.replace("|", "\\|").replace("\n", " ") or "-"
