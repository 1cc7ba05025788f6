"""The account: all that was recorded about a run as one dictionary, for a page, a dashboard or a script."""

from fieldwatch.report.account.account import BUDGET, account_from, account_of
from fieldwatch.report.account.thinning import chosen_points, fair_shares

__all__ = ["BUDGET", "account_from", "account_of", "chosen_points", "fair_shares"]
