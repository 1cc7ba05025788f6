"""Memory logs of a run: censuses as JSON lines, and tensor snapshots in the text format of the original profiler."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.record.memory.memory_log import MEMORY_LOG, MemoryLog, read_memory_log
    from fieldwatch.record.memory.profile_names import PROFILE_ROOTS, ProfileNames, profile_tag
    from fieldwatch.record.memory.tensor_log import LargeTensor, TensorLog, TensorSnapshot
    from fieldwatch.record.memory.tensor_reading import read_tensor_log
    from fieldwatch.record.memory.tensor_table import TensorLogTable, valid_rows

__all__ = [
    "MEMORY_LOG",
    "PROFILE_ROOTS",
    "LargeTensor",
    "MemoryLog",
    "ProfileNames",
    "TensorLog",
    "TensorLogTable",
    "TensorSnapshot",
    "profile_tag",
    "read_memory_log",
    "read_tensor_log",
    "valid_rows",
]

__getattr__, __dir__ = lazy_names(__name__)
