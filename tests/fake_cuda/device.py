"""`FakeCuda`: torch.cuda, exchanged for the pretended device."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace, TracebackType
from typing import Any, Self
from unittest import mock

import torch

from fake_cuda import graphs, tensors
from fake_cuda.guard import guard
from fake_cuda.ledger import Ledger, Memory
from fake_cuda.tensors import DEVICE, STATE, DeviceMode, DeviceTensor

NAME = "Pretended GPU"


class Event(torch.cuda.Event):
    """A CUDA event; the device is never behind the host."""

    def __new__(cls, *_: object, **__: object) -> Self:
        """Make one without the driver."""
        return object.__new__(cls)

    def __init__(self, enable_timing: bool = False, **_: object) -> None:
        self.timed = enable_timing
        self.at: float | None = None

    def record(self, stream: "Stream | None" = None) -> None:
        """Note the time."""
        assert stream is None or isinstance(stream, Stream)
        self.at = time.perf_counter()

    def query(self) -> bool:
        """Whether the event has happened."""
        return True

    def synchronize(self) -> None:
        """Wait for the event."""
        STATE.ledger.wait("Event.synchronize()")

    def wait(self, stream: "Stream | None" = None) -> None:
        """Let a stream wait for the event, not the host."""

    def elapsed_time(self, end: "Event") -> float:
        """Return the time between two events in ms."""
        if not (self.timed and end.timed) or self.at is None or end.at is None:
            raise ValueError("Both events must be created with argument 'enable_timing=True' and recorded.")
        return 1e3 * (end.at - self.at)


class Stream(torch.cuda.Stream):
    """A CUDA stream."""

    device = DEVICE

    def __new__(cls, *_: object, **__: object) -> Self:
        """Make one without the driver."""
        return object.__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        self.cuda_stream = id(self)

    def wait_stream(self, other: "Stream") -> None:
        """Wait for another stream on the device."""
        assert isinstance(other, Stream)

    def wait_event(self, event: Event) -> None:
        """Wait for an event on the device."""
        assert isinstance(event, Event)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Wait for the stream."""
        STATE.ledger.wait("Stream.synchronize()")

    def query(self) -> bool:
        """Whether the stream is idle."""
        return True

    def __enter__(self) -> Self:
        """Make nothing current: all streams are the same."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


_DEFAULT_STREAM = Stream()
_thread = threading.local()


def _current_stream(*_: object) -> Stream:
    return getattr(_thread, "stream", _DEFAULT_STREAM)


@contextmanager
def _in_stream(stream: Stream | None) -> Iterator[None]:
    before = _current_stream()
    _thread.stream = stream or before
    try:
        yield
    finally:
        _thread.stream = before


class _Generator(torch.Generator):
    """A generator that may belong to the device."""

    def __new__(cls, device: Any = "cpu") -> Self:
        made = super().__new__(cls, device="cpu")
        if torch.device(device).type == "cuda":
            STATE.generators[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Device of the generator."""
        return DEVICE if self._cdata in STATE.generators else torch.device("cpu")


def _seed(seed: int) -> None:
    STATE.default_generator.manual_seed(seed)


def _random_state(*_: object) -> torch.Tensor:
    return STATE.default_generator.get_state()


def _set_random_state(state: torch.Tensor, *_: object) -> None:
    if isinstance(state, DeviceTensor):
        raise TypeError("RNG state must be a torch.ByteTensor")
    STATE.default_generator.set_state(state)


def _set_all_random_states(states: list[torch.Tensor]) -> None:
    (state,) = states
    _set_random_state(state)


def _memory_statistics(*_: object) -> dict[str, Any]:
    memory = STATE.memory
    part = {"current": memory.allocated, "peak": memory.peak, "allocated": memory.peak, "freed": 0}
    pools = {"all": part, "small_pool": part, "large_pool": part}
    kinds = ("allocation", "segment", "active", "inactive_split")
    nested: dict[str, Any] = {name: pools for kind in kinds for name in (kind, f"{kind}_bytes")}
    nested |= {"allocated_bytes": pools, "reserved_bytes": pools, "requested_bytes": pools}
    nested |= {"oversize_allocations": part, "oversize_segments": part, "max_split_size": -1}
    counts = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
    return nested | dict.fromkeys(counts, 0)


class FakeCuda:
    """One pretended CUDA device while it is entered.

    Args:
        memory: size of its memory in bytes.

    Attributes:
        counts: whether launches and waits are counted.
        emulator: runs the kernels of fieldwatch.
    """

    emulator: Any

    counts = True

    def __init__(self, memory: int = 24 << 30) -> None:
        self._memory = memory
        self._stack = ExitStack()

    @property
    def ledger(self) -> Ledger:
        """What happened since the device was entered."""
        return STATE.ledger

    @property
    def memory(self) -> Memory:
        """What the tensors of the device hold."""
        return STATE.memory

    def run_out_of_memory(self, after: int) -> None:
        """Let the device run out of memory once, after a number of launches."""
        STATE.launches_left = after

    def __enter__(self) -> Self:
        """Make the device available."""
        tensors.STATE.__init__()
        pretend = guard().pretend
        pretend(1)
        with ExitStack() as stack:
            stack.callback(pretend, 0)
            for name, value in self._torch_cuda().items():
                stack.enter_context(mock.patch.object(torch.cuda, name, value))
            for name in ("memory_stats_as_nested_dict", "get_allocator_backend", "memory_snapshot"):
                stack.enter_context(mock.patch.object(torch.cuda.memory, name, getattr(torch.cuda, name)))
            observer = mock.patch.object(torch._C, "_cuda_attach_out_of_memory_observer", create=True)
            stack.enter_context(observer)
            stack.enter_context(mock.patch.object(torch, "Generator", _Generator))
            # Other threads of the autograd engine would not have the mode.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            torch._C._set_only_lift_cpu_tensors(True)
            stack.callback(torch._C._set_only_lift_cpu_tensors, False)
            stack.enter_context(DeviceMode())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the device."""
        self._stack.close()

    def _torch_cuda(self) -> dict[str, Any]:
        """Return the functions of torch.cuda of this device."""
        facts = SimpleNamespace(name=NAME, total_memory=self._memory, multi_processor_count=128, major=8, minor=9)
        return {
            "init": lambda: None,
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda *_: None,
            "get_device_properties": lambda *_: facts,
            "get_device_name": lambda *_: NAME,
            "get_device_capability": lambda *_: (facts.major, facts.minor),
            "is_bf16_supported": lambda *_, **__: True,
            "is_current_stream_capturing": lambda: STATE.capture is not None,
            "CUDAGraph": graphs.CudaGraph,
            "graph": graphs.graph,
            "graph_pool_handle": graphs.pool_handle,
            "synchronize": lambda *_: STATE.ledger.wait("torch.cuda.synchronize()"),
            "set_sync_debug_mode": lambda *_: None,
            "Event": Event,
            "Stream": Stream,
            "stream": _in_stream,
            "current_stream": _current_stream,
            "default_stream": lambda *_: _DEFAULT_STREAM,
            "manual_seed": _seed,
            "manual_seed_all": _seed,
            "default_generators": (STATE.default_generator,),
            "get_rng_state": _random_state,
            "get_rng_state_all": lambda: [_random_state()],
            "set_rng_state": _set_random_state,
            "set_rng_state_all": _set_all_random_states,
            "mem_get_info": lambda *_: (self._memory - STATE.memory.allocated, self._memory),
            "memory_allocated": lambda *_: STATE.memory.allocated,
            "max_memory_allocated": lambda *_: STATE.memory.peak,
            "memory_reserved": lambda *_: STATE.memory.allocated,
            "max_memory_reserved": lambda *_: STATE.memory.peak,
            "reset_peak_memory_stats": lambda *_: STATE.memory.reset_peak(),
            "empty_cache": lambda: None,
            "memory_snapshot": lambda *_, **__: [],
            "memory_stats_as_nested_dict": _memory_statistics,
            "get_allocator_backend": lambda: "native",
            "get_per_process_memory_fraction": lambda *_: 1.0,
        }
