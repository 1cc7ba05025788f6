"""Out of memory: what the error text says, and which of four reasons it was. Plain numbers; all of them bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fieldwatch.health.allocation import MIB, DeviceMemory, format_bytes

Reason = Literal["impossible request", "another process", "fragmentation", "exhaustion"]
# Sizes of torch's CUDACachingAllocator: requests up to 1 MiB share segments of 2 MiB, those below 10 MiB
# segments of 20 MiB, and larger ones get their own, rounded to 2 MiB.
_SMALL = MIB
_MIDDLE = 10 * MIB
_SMALL_SEGMENT = 2 * MIB
_MIDDLE_SEGMENT = 20 * MIB
_ROUND = 2 * MIB
# Times the whole device: beyond it nobody meant that size.
_ABSURD = 16
# Less than this is what any desktop or driver holds, and is not to blame.
_OTHERS_COUNT = 256 * MIB

_REMEDIES: Mapping[Reason, str] = {
    "impossible request": "Do not look for memory, look for the size: print the shapes in the failing line.",
    "another process": "End the other process (nvidia-smi or `fieldwatch gpu` names it), or use another device.",
    "fragmentation": "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (where the extensions in use bear it), keep "
    "tensor sizes alike from step to step, and call torch.cuda.empty_cache() once after densification, not every step.",
    "exhaustion": "",
}
_REMEDY_GROWTH = "Cap the model's size or end its growth earlier, and go on from the last checkpoint."
_REMEDY_STEP = "Make the step smaller: lower resolution, fewer rays or a smaller batch, chunks, no_grad in evaluation."
_REMEDY_LIMIT = "Raise the fraction given to torch.cuda.set_per_process_memory_fraction, or need less."


@dataclass(frozen=True, kw_only=True)
class OutOfMemoryDiagnosis:
    """Why a request failed.

    Attributes:
        reason: which of the four it was.
        message: what happened, with the numbers.
        remedy: what to do.
        missing: bytes that were missing.
    """

    reason: Reason
    message: str
    remedy: str
    missing: int

    def __str__(self) -> str:
        """Return the verdict in one paragraph."""
        return f"{self.reason}: {self.message} {self.remedy}"


def triage(request: int, device: DeviceMemory) -> OutOfMemoryDiagnosis:
    """Say why a request failed.

    Args:
        request: bytes asked for.
        device: its state when the request failed.

    Returns:
        The verdict: a request larger than what the process may ever have is impossible; else the larger one of what
        idle pieces and what other processes withhold is to blame, if it would have been enough; else the memory is
        truly exhausted.

    Raises:
        ValueError: a negative request.
    """
    if request < 0:
        raise ValueError(f"triage(request={request}): wanted the bytes asked for, 0 or more; sizes are not negative")
    if request > device.limit:
        return _impossible(request, device)
    # What the device still lacks once the allocator has given its idle segments back.
    missing = max(_segment(request) - device.obtainable, 0)
    fits_idle = device.idle >= missing and device.idle + device.obtainable >= request
    fits_foreign = device.foreign >= max(missing, _OTHERS_COUNT)
    if missing and fits_idle and not (fits_foreign and device.foreign > device.idle):
        return _fragmented(request, device, missing)
    if fits_foreign or not missing:
        return _crowded(request, device, missing)
    return _exhausted(request, device, missing)


def _segment(request: int) -> int:
    """Return the segment that torch's allocator asks the device for."""
    if request <= _SMALL:
        return _SMALL_SEGMENT
    return _MIDDLE_SEGMENT if request < _MIDDLE else -(-request // _ROUND) * _ROUND


def _impossible(request: int, device: DeviceMemory) -> OutOfMemoryDiagnosis:
    whole = format_bytes(device.total)
    times = request / device.total
    if request > _ABSURD * device.total:
        why = "such a size is no need but a mistake: a corrupt count, a negative number read as unsigned"
    else:
        side = round((request / 4) ** 0.5)
        why = f"it could never fit; as float32 it would be a {side:,} x {side:,} matrix: do [N, 1] and [N] broadcast?"
    message = f"{format_bytes(request)} were requested, {times:,.1f} times the whole device ({whole}); {why}."
    remedy = _REMEDIES["impossible request"]
    if device.allowed is not None and request <= device.total:
        limit = format_bytes(device.limit)
        message = f"{format_bytes(request)} were requested, and this process may have {limit} of {whole}."
        remedy = _REMEDY_LIMIT
    return OutOfMemoryDiagnosis(
        reason="impossible request", message=message, remedy=remedy, missing=request - device.limit
    )


def _crowded(request: int, device: DeviceMemory, missing: int) -> OutOfMemoryDiagnosis:
    held = format_bytes(device.foreign)
    whole = format_bytes(device.total)
    held = f"other processes hold {held} of {whole}, this one {format_bytes(device.reserved)}"
    message = f"{format_bytes(request)} were requested"
    if missing:
        message += f"; {held}; {format_bytes(missing)} were missing and would be there without them."
    else:
        message += f", and {format_bytes(device.obtainable)} can be had: at that moment something else had taken them."
        message += f" Now {held}." if device.others is not None else ""
    return OutOfMemoryDiagnosis(
        reason="another process", message=message, remedy=_REMEDIES["another process"], missing=missing
    )


def _fragmented(request: int, device: DeviceMemory, missing: int) -> OutOfMemoryDiagnosis:
    pieces = f", the largest piece {format_bytes(device.largest_free)}" if device.largest_free else ""
    lost = (
        f" ({format_bytes(device.not_returnable)} of it in segments that are in use)" if device.not_returnable else ""
    )
    message = (
        f"{format_bytes(request)} were requested; {format_bytes(device.idle)} lie idle in the cache{lost}{pieces}, and "
        f"{format_bytes(device.obtainable)} can be had from the device: enough together, but in no one place."
    )
    return OutOfMemoryDiagnosis(
        reason="fragmentation", message=message, remedy=_REMEDIES["fragmentation"], missing=missing
    )


def _exhausted(request: int, device: DeviceMemory, missing: int) -> OutOfMemoryDiagnosis:
    limit = format_bytes(device.limit)
    message = (
        f"{format_bytes(request)} were requested; tensors hold {format_bytes(device.allocated)} of {limit}, "
        f"{format_bytes(device.obtainable)} can be had, {format_bytes(missing)} were missing"
    )
    remedy = f"{_REMEDY_GROWTH} {_REMEDY_STEP}"
    if device.persistent is not None:
        step = max(device.allocated + request - device.persistent, 0)
        by_step = step > device.persistent
        which = "one step's needs" if by_step else "what stays from step to step"
        persistent = format_bytes(device.persistent)
        message += f"; {persistent} stay from step to step, this one wanted {format_bytes(step)}: it is {which}"
        remedy = _REMEDY_STEP if by_step else _REMEDY_GROWTH
    largest = sorted(device.peaks.items(), key=lambda item: -item[1])[:3]
    if largest:
        message += "; largest: " + ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
    return OutOfMemoryDiagnosis(reason="exhaustion", message=f"{message}.", remedy=remedy, missing=missing)
