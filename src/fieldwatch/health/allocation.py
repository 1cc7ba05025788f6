"""What an out-of-memory error says in its text: how much was asked for, and what the device had."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

MIB = 2**20
_UNITS = {f"{letter}ib": 1024**power for power, letter in enumerate("kmgtpe", start=1)}
# A number and its unit. The bounded repetitions keep a hostile log from costing quadratic time.
_SIZE = r"\b(\d{1,20}(?:\.\d{0,9})?) ?(bytes?|B|[KMGTPE]iB)\b"
_TORCH = re.compile(rf"out of memory[.,]? +tried to allocate {_SIZE}", re.IGNORECASE)
# torch's wording from 2**60 bytes on, where it prints no number any more.
_EXABYTE = re.compile(r"tried to allocate more than 1EB", re.IGNORECASE)
_CPU = re.compile(r"DefaultCPUAllocator: .{0,99}?tried to allocate (\d{1,20}) bytes")
_OVERFLOW = re.compile(r"Storage size calculation overflowed")
_NUMPY = re.compile(
    rf"Unable to allocate {_SIZE} for an array with shape \(([\d, ]{{0,999}})\)"
    r" and data type (?:([a-z]{3,7}\d{0,3})\b)?"
)
_DRIVER = re.compile(r"CUDA error: out of memory|cudaErrorMemoryAllocation|HIP error: out of memory")
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
# Only these names reach np.dtype, which accepts far more than names of number types.
_KINDS = frozenset(np.dtype(code).name for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?")
_OTHERS = re.compile(rf"Process \d+ has {_SIZE} memory in use")


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The state of a device when a request failed, in bytes.

    Attributes:
        total: what the device has.
        free: what no process has.
        allocated: what this process' tensors hold.
        reserved: what this process' allocator has taken from the device, cache included.
        not_returnable: idle pieces of segments that are partly in use.
        returnable: idle whole segments (torch gives these back before it fails).
        largest_free: the largest idle piece of the cache.
        others: what other processes hold, by NVML; None where it cannot be known.
        allowed: what this process may have, where that is less than the device.
        persistent: what stays allocated from step to step; None where it is not known.
        peaks: what the largest components, or spans of the step, hold.

    Raises:
        ValueError: a negative number, or a device without memory.
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
        """Refuse what no device can have."""
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        wrong = [f"{name}={value}" for name, value in numbers.items() if value < 0 or (name == "total" and not value)]
        if wrong:
            raise ValueError(f"DeviceMemory({', '.join(wrong)}): wanted bytes, 0 or more, and a total above 0")

    @property
    def limit(self) -> int:
        """What this process could have at most."""
        return self.total if self.allowed is None else min(self.total, self.allowed)

    @property
    def obtainable(self) -> int:
        """What the allocator can still get from the device, its own idle segments given back first."""
        return min(self.free, max(self.limit - self.reserved, 0)) + self.returnable

    @property
    def idle(self) -> int:
        """What the allocator has and no tensor uses, whole segments aside."""
        return max(self.reserved - self.allocated - self.returnable, self.not_returnable)

    @property
    def foreign(self) -> int:
        """What other processes hold; 0 where that is not known."""
        return self.others or 0


@dataclass(frozen=True, kw_only=True)
class AllocationRequest:
    """What an error text says; all numbers in bytes, None where it does not say them.

    Torch rounds to two digits behind the point, so numbers of gibibytes are right to about 5 MiB.

    Attributes:
        size: what was asked for; 2**60 and 2**63 stand for the sizes from which torch no longer says a number.
        device: ``"cpu"``, or such as ``"cuda:0"``.
        total: what the device has.
        free: what was free on it.
        allocated: what this process' tensors held.
        reserved: what this process' allocator had taken.
        others: what other processes held.
        allowed: what this process may have, where it was given a fraction of the device.
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
        """Return the device's state as far as the text says it; None where it does not."""
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
    """Read the text of an out-of-memory error.

    Known are torch's CUDA and HIP allocator in the wordings since 1.0, torch's CPU allocator, sizes that overflow,
    numpy's arrays, and the driver's own "CUDA error: out of memory" (which says no numbers).

    Args:
        text: the message of the exception, or a log that ends with it.

    Returns:
        What it says; None where it is no such error.
    """
    # Loggers wrap long messages; the patterns expect single blanks.
    text = re.sub(r"\s+", " ", text)
    matches = list(_TORCH.finditer(text))
    if matches:
        # A log may hold several errors: the last one ended the process, and what it says of the device follows it.
        return _torch(_bytes(matches[-1].groups()), text[matches[-1].start() :])
    if _EXABYTE.search(text):
        return AllocationRequest(size=2**60, device="cuda")
    if match := _CPU.search(text):
        return AllocationRequest(size=int(match[1]), device="cpu")
    if _OVERFLOW.search(text):
        return AllocationRequest(size=2**63, device="cpu")
    if match := _NUMPY.search(text):
        return AllocationRequest(size=_array_bytes(match), device="cpu")
    return AllocationRequest(size=None, device="cuda") if _DRIVER.search(text) else None


def format_bytes(size: int) -> str:
    """Return bytes as people read them: ``2.50 GiB``, ``20 MiB``."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            number = size / 1024**power
            return f"{number:,.2f} {unit}" if power > 2 else f"{number:,.0f} {unit}"
    return f"{size} B"


def _torch(size: int, text: str) -> AllocationRequest:
    """Read the rest of what torch's allocator says about a device."""
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
    """Return what other processes held.

    Inside a container torch does not find itself among the processes and lists itself by a foreign number; under WSL a
    process' memory is unknown and comes as 2**64 bytes. Such numbers say nothing of others.
    """
    listed = [_bytes(match.groups()) for match in _OTHERS.finditer(text)]
    if total is not None and max([*listed, process or 0]) > total:
        return None
    # Where torch knows its own process, an empty list means that there are no others; else nothing is known.
    if not listed:
        return 0 if process is not None else None
    if process is not None:
        return sum(listed)
    # An entry that holds what our allocator reserved is this process under a foreign number.
    largest = max(listed)
    return sum(listed) - (largest if reserved is not None and largest >= reserved else 0)


def _bytes(groups: tuple[str | None, ...]) -> int:
    """Return the bytes of a number and a unit, from whichever alternative of the pattern matched."""
    number, unit = [group for group in groups if group is not None][:2]
    return round(float(number) * _UNITS.get(unit.lower(), 1))


def _array_bytes(match: re.Match[str]) -> int:
    """Return the exact size of the array that numpy could not make; the rounded one if its type is unknown."""
    number, unit, shape, kind = match.groups()
    if kind not in _KINDS:
        return _bytes((number, unit))
    item_bytes = np.dtype(kind).itemsize
    return math.prod(int(side) for side in shape.split(",") if side.strip()) * item_bytes
