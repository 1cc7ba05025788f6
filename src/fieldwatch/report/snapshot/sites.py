"""Totals of allocations by the line of code that made them."""

import numpy as np
from numpy.typing import NDArray

from fieldwatch.report.snapshot.model import Allocations, SiteUse, Timeline
from fieldwatch.report.snapshot.stacks import BEFORE, NO_STACK, Stack, site_frames


def sites_of(
    allocations: Allocations, timeline: Timeline, stacks: tuple[Stack, ...]
) -> tuple[tuple[SiteUse, ...], NDArray[np.int32]]:
    """Return the memory use of each site, most bytes at the peak or at the end first.

    Returns:
        The sites, and the index of each allocation's site, ``[allocations]`` int32.
    """
    names, code_of_stack = _codes(allocations, stacks)
    codes = code_of_stack[
        allocations.stack
    ]  # stack -1 addresses the last entry, for allocations from before the history
    count = len(names)
    at = timeline.peak.event if timeline.peak else len(timeline.requested)
    made = allocations.start >= 0
    now = _sums(codes, allocations.size, allocations.live, count)
    peak = _sums(codes, allocations.size, (allocations.start <= at) & (allocations.end > at), count)
    churn = _sums(codes, allocations.size, made, count)
    times = np.bincount(codes[made], minlength=count)
    largest = _largest_stacks(allocations, codes, count)
    order: NDArray[np.intp] = np.lexsort((-churn, -np.maximum(now, peak)))
    places = np.empty(count, dtype=np.int32)
    places[order] = np.arange(count, dtype=np.int32)
    sums = np.stack([now, peak, churn, times], axis=1).tolist()
    chosen: list[int] = order.tolist()
    uses = tuple(_use(names[i], stacks[largest[i]] if largest[i] >= 0 else (), sums[i]) for i in chosen)
    return uses, places[codes]


def site_name(stack: Stack) -> str:
    """Return the site of a stack, ``file.py:12 function``."""
    return str(site_frames(stack)[0]) if stack else NO_STACK


def _codes(allocations: Allocations, stacks: tuple[Stack, ...]) -> tuple[list[str], NDArray[np.intp]]:
    """Return the sites, and a table from stacks to sites; its last entry is for allocations before the history."""
    numbers: dict[tuple[str, str], int] = {}
    table = np.zeros(len(stacks) + 1, dtype=np.intp)
    occurring: list[int] = np.unique(allocations.stack).tolist()
    for stack in occurring:
        if stack < 0:
            key = (BEFORE, "")
        else:
            frames = stacks[stack]
            key = (site_name(frames), site_frames(frames)[0].filename if frames else "")
        table[stack] = numbers.setdefault(key, len(numbers))
    return [name for name, _ in numbers], table


def _sums(codes: NDArray[np.intp], size: NDArray[np.int64], chosen: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """Return the bytes of the chosen allocations for each site ``[sites]``."""
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, codes[chosen], size[chosen])
    return sums


def _largest_stacks(allocations: Allocations, codes: NDArray[np.intp], count: int) -> list[int]:
    """Return the stack with the most bytes of each site; -1 if there is none."""
    sums: dict[tuple[int, int], int] = {}
    for code, stack, size in zip(codes.tolist(), allocations.stack.tolist(), allocations.size.tolist(), strict=True):
        sums[code, stack] = sums.get((code, stack), 0) + size
    best = [(-1, -1)] * count
    for (code, stack), size in sums.items():
        best[code] = max(best[code], (size, stack))
    return [stack for _, stack in best]


def _use(name: str, stack: Stack, sums: list[int]) -> SiteUse:
    frames = site_frames(stack)
    now, peak, churn, count = sums
    return SiteUse(
        site=name,
        filename=frames[0].filename if frames else "",
        now=now,
        at_peak=peak,
        churn=churn,
        count=count,
        stack=tuple(str(frame) for frame in frames),
    )
