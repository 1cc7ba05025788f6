"""Command lines for Nsight Systems (``nsys``), and a parser for its statistics.

nsys traces CUDA only in processes that it has started itself; it cannot attach to a running process. A command is
therefore started under nsys, in one of three ways:

* whole: ``nsys profile`` records from start to end;
* range: ``nsys profile --capture-range=cudaProfilerApi`` waits until the command calls ``cudaProfilerStart``, which a
  run does at the steps, or on the finding, selected by environment variables;
* on request: ``nsys launch`` prepares the command and records nothing until ``nsys start`` and ``nsys stop`` are called
  with its session. This allows to record some seconds of a running command, repeatedly.

For a process that was not started under nsys, only counters of the whole device are available, without kernel names.
"""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.monitor.nsight.lines import (
        ON_FINDING,
        SESSION,
        STEPS,
        Capture,
        device_line,
        find_nsys,
        report_file,
        start_line,
        stats_line,
        stop_line,
        training_line,
        whose,
    )
    from fieldwatch.monitor.nsight.statistics import Statistics, parse_statistics

__all__ = [
    "ON_FINDING",
    "SESSION",
    "STEPS",
    "Capture",
    "Statistics",
    "device_line",
    "find_nsys",
    "parse_statistics",
    "report_file",
    "start_line",
    "stats_line",
    "stop_line",
    "training_line",
    "whose",
]

__getattr__, __dir__ = lazy_names(__name__)
