"""Configs: bounds of their settings, conversion to plain JSON values, and conversion back to dataclasses."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.record.config.bounds import (
        AT_LEAST_ONE,
        FINITE_WEIGHT,
        FRACTION,
        NOT_NEGATIVE,
        POSITIVE,
        Bounds,
        refuse_out_of_bounds,
    )
    from fieldwatch.record.config.names import as_stored_now, formerly, with_current_names
    from fieldwatch.record.config.stored import config_from_plain, config_of_run, preset_of_run
    from fieldwatch.record.config.values import (
        ConfigMismatch,
        config_differences,
        flattened,
        plain_values,
        refuse_mismatch,
    )

__all__ = [
    "AT_LEAST_ONE",
    "FINITE_WEIGHT",
    "FRACTION",
    "NOT_NEGATIVE",
    "POSITIVE",
    "Bounds",
    "ConfigMismatch",
    "as_stored_now",
    "config_differences",
    "config_from_plain",
    "config_of_run",
    "flattened",
    "formerly",
    "plain_values",
    "preset_of_run",
    "refuse_mismatch",
    "refuse_out_of_bounds",
    "with_current_names",
]

__getattr__, __dir__ = lazy_names(__name__)
