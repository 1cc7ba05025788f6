"""Plants in runs of the pipelines."""

from verdict_runs.cases import Healthy, Plant

PIPELINES: tuple[Plant, ...] = ()
HEALTHY_PIPELINES: tuple[Healthy, ...] = ()
