"""Table of quality metrics: the pipeline's table, or one row per tag."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from fieldwatch.base import number
from fieldwatch.registry import Pipeline


def quality_of(pipeline: Pipeline, metrics: Mapping[str, float]) -> Any:
    """Return the pipeline's table of metrics; if it has none, a table of all tags."""
    table_of = pipeline.load("quality")
    return quality_table(metrics) if table_of is None else table_of(metrics)


def quality_table(metrics: Mapping[str, float]) -> Table:
    """Return a table with one row per tag."""
    table = Table(title="quality", title_justify="left", show_header=False)
    # Six digits: the range of unknown metrics is unknown, too.
    for tag, value in metrics.items():
        table.add_row(tag, number(value, 6))
    return table
