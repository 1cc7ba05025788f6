"""The tab "fieldwatch" in TensorBoard: the panels of the report, live, for the runs that TensorBoard looks at.

TensorBoard asks for what stands here while it starts, so nothing heavier than its own base class is imported.
"""

from fieldwatch.report.tab.loader import TabLoader

__all__ = ["TabLoader"]
