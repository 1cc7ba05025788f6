"""The tab "fieldwatch" in TensorBoard: live panels of the report for the runs that TensorBoard shows.

TensorBoard imports this package while it starts, so it imports nothing heavier than TensorBoard's base class.
"""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.tab.loader import TabLoader

__all__ = ["TabLoader"]

__getattr__, __dir__ = lazy_names(__name__)
