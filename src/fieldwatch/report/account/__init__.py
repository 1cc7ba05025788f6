"""Account of a run: everything it recorded as one dictionary, for a page, a dashboard or a script."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.account.account import BUDGET, account_from, account_of
    from fieldwatch.report.account.series import derived
    from fieldwatch.report.account.thinning import chosen_points, fair_shares

__all__ = ["BUDGET", "account_from", "account_of", "chosen_points", "derived", "fair_shares"]

__getattr__, __dir__ = lazy_names(__name__)
