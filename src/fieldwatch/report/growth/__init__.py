"""Growth ledger: every densification, prune and reset of a run, with loss, PSNR and memory before and after it."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.growth.entry import GrowthTotals, LedgerEntry, totals_of
    from fieldwatch.report.growth.ledger import growth_ledger
    from fieldwatch.report.growth.table import chosen_entries, ledger_table, totals_text, write_csv

__all__ = [
    "GrowthTotals",
    "LedgerEntry",
    "chosen_entries",
    "growth_ledger",
    "ledger_table",
    "totals_of",
    "totals_text",
    "write_csv",
]

__getattr__, __dir__ = lazy_names(__name__)
