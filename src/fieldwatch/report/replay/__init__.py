"""Result of a replay as sentences for the terminal, and as an account that the report's page draws."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.replay.account import replay_account
    from fieldwatch.report.replay.sentences import conflicts_of, findings_of, summary_of

__all__ = ["conflicts_of", "findings_of", "replay_account", "summary_of"]

__getattr__, __dir__ = lazy_names(__name__)
