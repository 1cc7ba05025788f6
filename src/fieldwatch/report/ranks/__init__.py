"""Comparison of the ranks of a distributed training."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.ranks.side_by_side import RANKS, RankFacts, ranks_table, read_ranks

__all__ = ["RANKS", "RankFacts", "ranks_table", "read_ranks"]

__getattr__, __dir__ = lazy_names(__name__)
