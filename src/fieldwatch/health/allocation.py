"""Parser for the texts of out-of-memory errors: the requested size, and the state of the device."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

MIB = 2**20
_UNITS = {f"{letter}ib": 1024**power for power, letter in enumerate("kmgtpe", start=1)}
# A number and its unit. The bounded repetitions prevent quadratic run time on a malicious log.
_SIZE = r"\b(\d{1,20}(?:\.\d{0,9})?) ?(bytes?|B|[KMGTPE]iB)\b"
_TORCH = re.compile(rf"out of memory[.,]? +tried to allocate {_SIZE}", re.IGNORECASE)
# For sizes of 2**60 bytes and more, torch prints this text instead of a number.
_EXABYTE = re.compile(r"tried to allocate more than 1EB", re.IGNORECASE)
_CPU = re.compile(r"DefaultCPUAllocator: .{0,99}?tried to allocate (\d{1,20}) bytes")
_OVERFLOW = re.compile(r"Storage size calculation overflowed")
_NUMPY = re.compile(
    rf"Unable to allocate {_SIZE} for an array with shape \(([\d, ]{{0,999}})\)"
    r" and data type (?:([a-z]{3,7}\d{0,3})\b)?"
)
# Texts without a size, by device. C++ code that cannot allocate, such as torch's own bookkeeping, raises bad_alloc.
_WITHOUT_SIZE = {
    "cuda": re.compile(r"CUDA error: out of memory|cudaErrorMemoryAllocation|HIP error: out of memory"),
    "cpu": re.compile(r"\bstd::bad_alloc\b"),
}
_GPU = re.compile(r"\bGPU (\d+)\b")
# The alternatives cover the wordings of torch 1 and 2.
_DEVICE_SIZES = {
    "total": re.compile(rf"(?:total capaci?ty of {_SIZE}|{_SIZE} total capacity)"),
    "free": re.compile(rf"(?:of which {_SIZE} is free|{_SIZE} free)"),
    "own": re.compile(rf"this process has {_SIZE} memory in use"),
    "allowed": re.compile(rf"{_SIZE} allowed"),
    "allocated": re.compile(rf"{_SIZE} (?:is allocated by PyTorch|already allocated)"),
    "idle": re.compile(rf"{_SIZE} (?:is reserved by PyTorch but unallocated|cached)"),
    "reserved": re.compile(rf"{_SIZE} reserved in total by PyTorch"),
}
# Only these names are passed to np.dtype, which accepts far more than the names of numeric types.
_KINDS = frozenset(np.dtype(code).name for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?")
_OTHERS = re.compile(rf"Process \d+ has {_SIZE} memory in use")


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """State of a device when an allocation failed, in bytes.

    Attributes:
        total: memory of the device.
        free: memory that no process has taken.
        allocated: memory of this process' tensors.
        reserved: memory that this process' allocator has taken from the device, including its cache.
        not_returnable: idle blocks in segments that are partly in use.
        returnable: idle whole segments, which torch returns to the device before it fails.
        largest_free: largest idle block of the cache.
        others: memory of other processes according to NVML; None if unknown.
        allowed: limit of this process if it is less than the device's memory.
        persistent: memory that stays allocated between steps; None if unknown.
        peaks: memory of the largest components or spans of the step, by name.

    Raises:
        ValueError: if a number is negative or the total is 0.
    """

    total: int
    free: int
    allocated: int
    reserved: int
    not_returnable: int = 0
    returnable: int = 0
    largest_free: int = 0
    others: int | None = None
    allowed: int | None = None
    persistent: int | None = None
    peaks: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        """Validate the numbers."""
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        wrong = [f"{name}={value}" for name, value in numbers.items() if value < 0 or (name == "total" and not value)]
        if wrong:
            raise ValueError(f"DeviceMemory({', '.join(wrong)}): sizes must be 0 bytes or more, and total above 0")

    @property
    def limit(self) -> int:
        """Maximum memory that this process could have."""
        return self.total if self.allowed is None else min(self.total, self.allowed)

    @property
    def obtainable(self) -> int:
        """Memory that the allocator can still obtain from the device after it has returned its idle segments."""
        return min(self.free, max(self.limit - self.reserved, 0)) + self.returnable

    @property
    def idle(self) -> int:
        """Reserved memory that no tensor uses, except for whole idle segments."""
        return max(self.reserved - self.allocated - self.returnable, self.not_returnable)

    @property
    def foreign(self) -> int:
        """Memory of other processes; 0 if unknown."""
        return self.others or 0


@dataclass(frozen=True, kw_only=True)
class AllocationRequest:
    """Contents of an out-of-memory error text, in bytes; None for numbers that the text does not contain.

    Torch rounds to two decimals, so sizes printed in GiB are accurate to about 5 MiB.

    Attributes:
        size: requested size; 2**60 and 2**63 stand for sizes that torch reports without a number.
        device: ``"cpu"``, or a device such as ``"cuda:0"``.
        total: memory of the device.
        free: free memory of the device.
        allocated: memory of this process' tensors.
        reserved: memory that this process' allocator had taken.
        others: memory of other processes.
        allowed: limit of this process if it was given a fraction of the device.
    """

    size: int | None
    device: str
    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    others: int | None = None
    allowed: int | None = None

    def memory(self) -> DeviceMemory | None:
        """Return the state of the device; None if the text does not contain enough numbers."""
        if not self.total or self.free is None or self.allocated is None:
            return None
        return DeviceMemory(
            total=self.total,
            free=self.free,
            allocated=self.allocated,
            reserved=self.allocated if self.reserved is None else self.reserved,
            others=self.others,
            allowed=self.allowed,
        )


def parse_out_of_memory(text: str) -> AllocationRequest | None:
    """Parse the text of an out-of-memory error.

    Recognizes torch's CUDA and HIP allocators (all wordings since 1.0), torch's CPU allocator, sizes that overflow,
    numpy's array allocation errors, and two that contain no numbers: the driver's "CUDA error: out of memory", and
    "std::bad_alloc" of C++ code.

    Args:
        text: message of the exception, or a log that ends with it.

    Returns:
        The parsed request; None if the text is not an out-of-memory error.
    """
    # Loggers wrap long messages, but the patterns expect single spaces.
    text = re.sub(r"\s+", " ", text)
    matches = list(_TORCH.finditer(text))
    if matches:
        # A log may contain several errors: the last one ended the process, and its device state follows the size.
        return _torch(_bytes(matches[-1].groups()), text[matches[-1].start() :])
    if _EXABYTE.search(text):
        return AllocationRequest(size=2**60, device="cuda")
    if match := _CPU.search(text):
        return AllocationRequest(size=int(match[1]), device="cpu")
    if _OVERFLOW.search(text):
        return AllocationRequest(size=2**63, device="cpu")
    if match := _NUMPY.search(text):
        return AllocationRequest(size=_array_bytes(match), device="cpu")
    devices = [device for device, pattern in _WITHOUT_SIZE.items() if pattern.search(text)]
    return AllocationRequest(size=None, device=devices[0]) if devices else None


def _torch(size: int, text: str) -> AllocationRequest:
    """Parse the device state in an error text of torch's allocator."""
    sizes = {name: _bytes(match.groups()) for name, pattern in _DEVICE_SIZES.items() if (match := pattern.search(text))}
    gpu = _GPU.search(text)
    allocated = sizes.get("allocated")
    reserved = sizes.get("reserved")
    if reserved is None and allocated is not None and "idle" in sizes:
        reserved = allocated + sizes["idle"]
    total = sizes.get("total")
    return AllocationRequest(
        size=size,
        device=f"cuda:{gpu[1]}" if gpu else "cuda",
        total=total,
        free=sizes.get("free"),
        allocated=allocated,
        reserved=reserved,
        others=_others(text, reserved, total, sizes.get("own")),
        allowed=sizes.get("allowed"),
    )


def _others(text: str, reserved: int | None, total: int | None, process: int | None) -> int | None:
    """Return the memory of other processes.

    In a container, torch does not recognize itself in the list of processes and appears there under a foreign process
    ID. Under WSL the memory of a process is unknown and is printed as 2**64 bytes. Such entries must not be counted.
    """
    listed = [_bytes(match.groups()) for match in _OTHERS.finditer(text)]
    if total is not None and max([*listed, process or 0]) > total:
        return None
    # If torch recognized its own process, an empty list means that there are no others; otherwise they are unknown.
    if not listed:
        return 0 if process is not None else None
    if process is not None:
        return sum(listed)
    # An entry at least as large as our reserved memory is this process under a foreign process ID.
    largest = max(listed)
    return sum(listed) - (largest if reserved is not None and largest >= reserved else 0)


def _bytes(groups: tuple[str | None, ...]) -> int:
    """Return the size in bytes from the number and the unit of whichever alternative of the pattern matched."""
    number, unit = [group for group in groups if group is not None][:2]
    return round(float(number) * _UNITS.get(unit.lower(), 1))


def _array_bytes(match: re.Match[str]) -> int:
    """Return the exact size in bytes of the array in a numpy error; the printed, rounded one for unknown dtypes."""
    number, unit, shape, kind = match.groups()
    if kind not in _KINDS:
        return _bytes((number, unit))
    item_bytes = np.dtype(kind).itemsize
    return math.prod(int(side) for side in shape.split(",") if side.strip()) * item_bytes
