"""Diagnosis of out-of-memory errors: classifies a failed request as one of four reasons. All sizes are in bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fieldwatch.base import nbytes
from fieldwatch.health.allocation import MIB, DeviceMemory

Reason = Literal["impossible request", "another process", "fragmentation", "exhaustion"]
# Sizes of torch's CUDACachingAllocator: requests up to 1 MiB share segments of 2 MiB, those below 10 MiB
# segments of 20 MiB, and larger ones get their own, rounded to 2 MiB.
_SMALL = MIB
_MIDDLE = 10 * MIB
_SMALL_SEGMENT = 2 * MIB
_MIDDLE_SEGMENT = 20 * MIB
_ROUND = 2 * MIB
# Multiple of the device's memory above which a request is a mistake rather than a need.
_ABSURD = 16
# A desktop session or a driver holds up to this much; it is not the reason for a failure.
_OTHERS_COUNT = 256 * MIB

# Two decimals, as in torch's own error, which users compare with this diagnosis.
_size = partial(nbytes, decimals=2)

_REMEDIES: Mapping[Reason, str] = {
    "impossible request": "The requested size is wrong, not the amount of memory: print the shapes in the failing "
    "line.",
    "another process": "End the other process (nvidia-smi or `fieldwatch gpu` lists it), or use another device.",
    "fragmentation": "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (if the extensions in use support it), keep "
    "tensor sizes the same from step to step, and call torch.cuda.empty_cache() once after densification, not every "
    "step.",
    "exhaustion": "",
}
_REMEDY_GROWTH = "Cap the model's size or stop densification earlier, and resume from the last checkpoint."
_REMEDY_STEP = (
    "Reduce the memory of a step: a lower resolution, fewer rays, a smaller batch, chunks, no_grad in evaluation."
)
_REMEDY_LIMIT = "Raise the fraction passed to torch.cuda.set_per_process_memory_fraction, or use less memory."


@dataclass(frozen=True, kw_only=True)
class OutOfMemoryDiagnosis:
    """Why an allocation failed.

    Attributes:
        reason: one of the four reasons.
        message: description of the failure, with the numbers.
        remedy: advice on how to avoid it.
        missing: number of bytes that were missing.
    """

    reason: Reason
    message: str
    remedy: str
    missing: int

    def __str__(self) -> str:
        """Return the diagnosis as one paragraph."""
        return f"{self.reason}: {self.message} {self.remedy}"


def triage(request: int, device: DeviceMemory) -> OutOfMemoryDiagnosis:
    """Diagnose why an allocation failed.

    Args:
        request: number of bytes requested.
        device: state of the device when the request failed.

    Returns:
        The diagnosis. A request larger than the limit of the process is impossible. Otherwise the reason is
        fragmentation (idle blocks) or another process, whichever holds more, if that memory would have been enough.
        Otherwise the memory is exhausted.

    Raises:
        ValueError: if the request is negative.
    """
    if request < 0:
        raise ValueError(f"triage(request={request}): the request must be 0 bytes or more")
    if request > device.limit:
        return _impossible(request, device)
    # Bytes that the device still lacks after the allocator has returned its idle segments.
    missing = max(_segment(request) - device.obtainable, 0)
    # Idle memory is the reason only if it would have been enough.
    fits_idle = device.idle >= missing and device.idle + device.obtainable >= request
    # The same holds for other processes.
    fits_foreign = device.foreign >= max(missing, _OTHERS_COUNT)
    if missing and fits_idle and not (fits_foreign and device.foreign > device.idle):
        return _fragmented(request, device, missing)
    if fits_foreign or not missing:
        return _crowded(request, device, missing)
    return _exhausted(request, device, missing)


def _segment(request: int) -> int:
    """Return the size of the segment that torch's allocator requests from the device."""
    if request <= _SMALL:
        return _SMALL_SEGMENT
    # The double negation rounds up.
    return _MIDDLE_SEGMENT if request < _MIDDLE else -(-request // _ROUND) * _ROUND


def _impossible(request: int, device: DeviceMemory) -> OutOfMemoryDiagnosis:
    whole = _size(device.total)
    times = request / device.total
    if request > _ABSURD * device.total:
        why = "such a size is a mistake, for example a corrupt count or a negative number read as unsigned"
    else:
        # The typical mistake: [N, 1] combined with [N] broadcasts to [N, N].
        side = round((request / 4) ** 0.5)
        why = f"it can never fit; in float32 it is a {side:,} x {side:,} matrix: do [N, 1] and [N] broadcast?"
    message = f"{_size(request)} were requested, {times:,.1f} times the whole device ({whole}); {why}."
    remedy = _REMEDIES["impossible request"]
    if device.allowed is not None and request <= device.total:
        limit = _size(device.limit)
        message = f"{_size(request)} were requested, but this process may have only {limit} of {whole}."
        remedy = _REMEDY_LIMIT
    return OutOfMemoryDiagnosis(
        reason="impossible request", message=message, remedy=remedy, missing=request - device.limit
    )


def _crowded(request: int, device: DeviceMemory, missing: int) -> OutOfMemoryDiagnosis:
    held = _size(device.foreign)
    whole = _size(device.total)
    held = f"other processes hold {held} of {whole}, this one {_size(device.reserved)}"
    message = f"{_size(request)} were requested"
    if missing:
        message += f"; {held}; {_size(missing)} were missing and would be available without them."
    else:
        # By the time of the diagnosis the memory is free again: another process held it for a moment.
        message += f", and {_size(device.obtainable)} are available now: another process had taken them."
        message += f" Now {held}." if device.others is not None else ""
    return OutOfMemoryDiagnosis(
        reason="another process", message=message, remedy=_REMEDIES["another process"], missing=missing
    )


def _fragmented(request: int, device: DeviceMemory, missing: int) -> OutOfMemoryDiagnosis:
    pieces = f", the largest block {_size(device.largest_free)}" if device.largest_free else ""
    lost = f" ({_size(device.not_returnable)} of it in segments that are in use)" if device.not_returnable else ""
    message = (
        f"{_size(request)} were requested; {_size(device.idle)} are idle in the cache{lost}{pieces}, and "
        f"{_size(device.obtainable)} are available on the device: enough in total, but not in one block."
    )
    return OutOfMemoryDiagnosis(
        reason="fragmentation", message=message, remedy=_REMEDIES["fragmentation"], missing=missing
    )


def _exhausted(request: int, device: DeviceMemory, missing: int) -> OutOfMemoryDiagnosis:
    limit = _size(device.limit)
    message = (
        f"{_size(request)} were requested; tensors hold {_size(device.allocated)} of {limit}, "
        f"{_size(device.obtainable)} are available, {_size(missing)} were missing"
    )
    remedy = f"{_REMEDY_GROWTH} {_REMEDY_STEP}"
    if device.persistent is not None:
        # Memory that only this step uses, including the failed request.
        step = max(device.allocated + request - device.persistent, 0)
        by_step = step > device.persistent
        which = "memory of one step" if by_step else "memory that stays allocated between steps"
        persistent = _size(device.persistent)
        message += f"; {persistent} stay allocated between steps, and this step needed {_size(step)}: "
        message += f"most of it is {which}"
        remedy = _REMEDY_STEP if by_step else _REMEDY_GROWTH
    # Three names are enough to act on.
    largest = sorted(device.peaks.items(), key=lambda item: -item[1])[:3]
    if largest:
        message += "; largest: " + ", ".join(f"{name} {_size(size)}" for name, size in largest)
    return OutOfMemoryDiagnosis(reason="exhaustion", message=f"{message}.", remedy=remedy, missing=missing)
