"""The processes of one training, side by side."""

from fieldwatch.report.ranks.side_by_side import RANKS, RankFacts, ranks_table, read_ranks

__all__ = ["RANKS", "RankFacts", "ranks_table", "read_ranks"]
