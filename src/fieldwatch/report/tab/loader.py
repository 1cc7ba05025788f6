"""Entry point of the tab, which TensorBoard imports when it starts."""

# TensorBoard has no type stubs.
# pyright: reportMissingTypeStubs=false

from typing import Any

from tensorboard.plugins import base_plugin


class TabLoader(base_plugin.TBLoader):
    """Loads the tab while TensorBoard starts.

    An error during the import of this module would keep TensorBoard from starting. An error raised by :meth:`load` is
    logged, and TensorBoard starts without the tab. Everything else is therefore imported in :meth:`load`.
    """

    def load(self, context: base_plugin.TBContext) -> Any:
        """Return the tab for the log folders of TensorBoard."""
        from fieldwatch.report.tab.plugin import TabPlugin  # noqa: PLC0415  optional: TensorBoard starts without the tab

        return TabPlugin(context)
