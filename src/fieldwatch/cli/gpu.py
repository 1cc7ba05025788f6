"""``fieldwatch gpu``: display the GPUs of this machine, their processes, and the runs in progress."""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from rich.live import Live

from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.output import BadInput, print_json
from fieldwatch.monitor import Machine, MachineReader, machine_line, read_machine, render_machine
from fieldwatch.record import Terminal

SHORTEST = 0.1


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Watch all GPUs, their processes and the runs on this machine, without allocating anything on a GPU.

    Example: fieldwatch gpu --once --json

    Memory is HIGH above 80 % and CRITICAL above 95 %. Values that the driver does not report are N/A. Without an NVIDIA
    driver, processor, memory and runs are listed. If the output is a pipe, each refresh is one plain line. Ctrl-C stops
    it with exit code 0.
    """

    interval: float = 2.0
    """Seconds between refreshes, at least 0.1."""
    once: bool = False
    """Print one view and exit."""
    json: bool = False
    """Print JSON: one object with --once, else one object per line and refresh."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(Arguments, prog="fieldwatch gpu", arguments=arguments)
    if not (math.isfinite(chosen.interval) and chosen.interval >= SHORTEST):
        raise BadInput(f"--interval {chosen.interval:g}: expected {SHORTEST} or more seconds between refreshes, e.g. 2")
    try:
        if chosen.once:
            _show_once(read_machine(), as_json=chosen.json)
        else:
            _watch(chosen.interval, as_json=chosen.json)
    except KeyboardInterrupt:
        pass
    return 0


def _show_once(machine: Machine, *, as_json: bool) -> None:
    if as_json:
        print_json(machine.as_json())
    else:
        Terminal(highlight=False).print(render_machine(machine, rows=sys.maxsize))


def _watch(interval: float, *, as_json: bool) -> None:
    console = Terminal(highlight=False)
    with MachineReader() as reader:
        # CPU usage is a difference of two readings: without this one the first line would report 0 %.
        reader.read()
        time.sleep(min(interval, 0.25))
        if as_json or not console.is_terminal:
            # Never returns; Ctrl-C ends it.
            _write_lines(reader, interval, as_json=as_json)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                # The height is read each time: the terminal may have been resized.
                live.update(render_machine(reader.read(), rows=console.height - 1), refresh=True)
                time.sleep(interval)


def _write_lines(reader: MachineReader, interval: float, *, as_json: bool) -> None:
    notes: tuple[str, ...] = ()
    while True:
        machine = reader.read()
        if as_json:
            sys.stdout.write(orjson.dumps(machine.as_json(), default=str).decode() + "\n")
        else:
            # A note is written when it appears, not with every line.
            new_notes = [note for note in machine.notes if note not in notes]
            sys.stdout.write("".join(f"note: {note}\n" for note in new_notes) + machine_line(machine) + "\n")
            notes = machine.notes
        # A pipe is block-buffered; its reader should get each line immediately.
        sys.stdout.flush()
        time.sleep(interval)
