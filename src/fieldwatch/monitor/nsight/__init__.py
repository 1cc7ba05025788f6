"""Nsight: command lines for Nsight Systems (``nsys``), and its statistics read back.

What nsys can do decides what is offered. It traces CUDA only in processes that it started itself: there is no way to
attach to one that runs already. So a command is started under it, in one of three ways:

* whole: ``nsys profile`` records from start to end;
* a range: ``nsys profile --capture-range=cudaProfilerApi`` waits until the command calls ``cudaProfilerStart``, which a
  run does at the steps, or on the finding, that it is asked for by environment variables;
* on request: ``nsys launch`` prepares the command and records nothing, until ``nsys start`` and ``nsys stop`` name its
  session. That is how some seconds of a running command can be had, again and again.

And for a process that was started without: counters of the whole device, without the names of kernels.
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
