"""What TensorBoard finds by the entry point: it brings the tab, or TensorBoard goes on without it."""

# TensorBoard has no type stubs.
# pyright: reportMissingTypeStubs=false

from typing import Any

from tensorboard.plugins import base_plugin


class TabLoader(base_plugin.TBLoader):
    """Loads the tab while TensorBoard starts.

    TensorBoard imports this module unguarded: an error here would keep it from starting. What :meth:`load` raises it
    logs, and goes on without the tab; so everything else is imported there.
    """

    def load(self, context: base_plugin.TBContext) -> Any:
        """Return the tab for what TensorBoard was told to show."""
        from fieldwatch.report.tab.plugin import TabPlugin  # noqa: PLC0415  optional: without it TensorBoard starts tabless

        return TabPlugin(context)
