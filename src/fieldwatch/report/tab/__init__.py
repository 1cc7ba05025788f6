"""The tab "fieldwatch" in TensorBoard: the panels of the report, live, for the runs that TensorBoard looks at.

TensorBoard asks for what stands here while it starts, so nothing heavier than its own base class is imported.
"""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.tab.loader import TabLoader

__all__ = ["TabLoader"]

__getattr__, __dir__ = lazy_names(__name__)
