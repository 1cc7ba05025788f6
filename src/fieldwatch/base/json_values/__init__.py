"""Tolerant access to JSON values: those of an unexpected type count as empty."""

from fieldwatch.base.json_values.access import as_list, as_mapping, as_objects, is_count, is_number

__all__ = [
    "as_list",
    "as_mapping",
    "as_objects",
    "is_count",
    "is_number",
]
