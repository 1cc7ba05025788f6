"""Health rules that apply to a run."""

from pathlib import Path

from fieldwatch.health import GENERAL, HealthRule
from fieldwatch.registry import find_pipeline, pipeline_name_of, pipeline_names


def rules_of_run(folder: Path) -> tuple[HealthRule, ...]:
    """Return the rules of the pipeline that trained a run; the general rules if it is not installed.

    Raises:
        NotARun: the folder holds no run.
    """
    # A run of an uninstalled pipeline, or of a custom loop, can still be examined.
    name = pipeline_name_of(folder)
    return find_pipeline(name).load("rules") if name is not None and name in pipeline_names() else GENERAL
