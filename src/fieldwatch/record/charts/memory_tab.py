"""The dashboard tab for runs that record memory tags."""

from fieldwatch.record.charts.layout import Chart, Tab

MEMORY_TAB = Tab(
    title="Memory",
    charts=(
        Chart(title="Allocated, peak, capacity (MiB)", tags=("^Memory/(allocated|peak|reserved|capacity)_MB$",)),
        Chart(title="By owner (MiB)", tags=("^(TensorProfiling|Memory)/Tensor_Category/.*_MB$",)),
        Chart(title="By component (MiB)", tags=("^(TensorProfiling|Memory)/Component/.*_MB$",)),
        Chart(title="Peak by span (MiB)", tags=("^(TensorProfiling|Memory)/Peak/.*_MB$",)),
        Chart(title="Idle memory (MiB)", tags=("^(TensorProfiling|Memory)/Fragmentation/.*_MB$",)),
    ),
    closed=True,
)
"""Allocated memory at every step, and its owners at profiled steps."""
