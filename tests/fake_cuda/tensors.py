"""Tensors of the pretended device, and the dispatch of every operation on them."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from fake_cuda import operations
from fake_cuda.ledger import Ledger, Memory
from fake_cuda.operations import aten

DEVICE = torch.device("cuda", 0)
_HOST = torch.device("cpu")


class DeviceState:
    """The one pretended device of this process.

    Attributes:
        ledger: what happened since the device was entered.
        memory: what its tensors hold.
        generators: generators that were made for the device, by address; kept, so that no other one gets the address.
        default_generator: default generator of the device.
        pinned: tensors in pinned memory of the host.
        launches_left: launches after which the device is out of memory, once; None for never.
        capture: graph that records what is launched; None outside of a capture.
        pools: memory of graphs, by pool.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.memory = Memory()
        self.default_generator = torch.Generator().manual_seed(0)
        self.generators: dict[int, torch.Generator] = {self.default_generator._cdata: self.default_generator}
        self.pinned: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.launches_left: int | None = None
        self.capture: Any = None
        self.pools: dict[tuple[int, int], list[torch.Tensor]] = {}


STATE = DeviceState()


class DeviceTensor(torch.Tensor):
    """A tensor that reports ``cuda:0``.

    Attributes:
        values: its values on the CPU; views share them.
        memory: counts them as memory of the device.
    """

    values: torch.Tensor
    memory: object

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> Self:
        """Wrap values."""
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=DEVICE,
        )
        made.values = values
        made.memory = STATE.memory.hold(values.untyped_storage())
        return made

    # Module.to() exchanges the parameters of a module for subclasses only if these can be flattened.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Return the names of the plain tensors inside."""
        return ["values"], None

    @staticmethod
    def __tensor_unflatten__(inner: Mapping[str, torch.Tensor], *_: object) -> "DeviceTensor":
        """Return a tensor of plain tensors."""
        return DeviceTensor(inner["values"])

    def __repr__(self) -> str:
        """Return the values."""
        return f"DeviceTensor({self.values!r})"

    # Asked for in the backward passes of our own functions, too, where `__torch_function__` is off.
    def tolist(self) -> Any:
        """Return the values, which the host waits for."""
        STATE.ledger.wait("tolist()")
        return self.values.tolist()

    # torch parses the stream, which is pretended too, before it asks `__torch_function__`.
    def record_stream(self, _: object) -> None:
        """Keep the memory until the stream is done; here it always is."""

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Answer what never reaches the dispatcher: memory addresses and conversions."""
        if func in _CONVERSIONS:
            return _CONVERSIONS[func](*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            done = func(*args, **(kwargs or {}))
        if func is torch.Tensor.data.__set__:
            target, value = args
            target.values = _plain(value)
            target.memory = STATE.memory.hold(target.values.untyped_storage())
        return done

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run an operation on the CPU, if CUDA would run it."""
        return _dispatch(func, args, kwargs or {})


class DeviceMode(TorchDispatchMode):
    """Sends operations without a tensor of the device here too, such as `torch.zeros(..., device="cuda")`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Be called directly: torch's wrapper for its compiler, which nothing here uses, takes longer."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run an operation."""
        return _dispatch(func, args, kwargs or {})


class _Storage:
    """Storage of a tensor of the device, as far as accounting asks for it."""

    device = DEVICE

    def __init__(self, values: torch.Tensor) -> None:
        self._storage = values.untyped_storage()
        self._cdata = self._storage._cdata
        self.data_ptr = self._storage.data_ptr
        self.nbytes = self.size = self._storage.nbytes


def _to_numpy(tensor: "DeviceTensor", *, force: bool = False) -> Any:
    if force:
        STATE.ledger.wait("copy to the host")
        return tensor.values.detach().resolve_conj().resolve_neg().numpy()
    return _refuse_numpy(tensor)


def _refuse_numpy(tensor: torch.Tensor, *_: object, **__: object) -> Any:
    raise TypeError(f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() first.")


_CONVERSIONS = {
    torch.Tensor.numpy: _to_numpy,
    torch.Tensor.__array__: _refuse_numpy,
    torch.Tensor.data_ptr: lambda tensor: tensor.values.data_ptr(),
    torch.Tensor.untyped_storage: lambda tensor: _Storage(tensor.values),
    torch.Tensor.is_pinned: lambda *_: False,
    torch.Tensor.__deepcopy__: lambda tensor, _: DeviceTensor(tensor.values.clone()).requires_grad_(
        tensor.requires_grad
    ),
}


def _plain(value: Any) -> Any:
    return value.values if isinstance(value, DeviceTensor) else value


def _wrapped(value: Any) -> Any:
    return DeviceTensor(value) if isinstance(value, torch.Tensor) and not isinstance(value, DeviceTensor) else value


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


@dataclass(frozen=True)
class _Operation:
    """What the dispatch asks about an operation at every call.

    Attributes:
        name: name without its namespace and its overload.
        full_name: with both.
        seeded: whether it draws random numbers.
        written: positions and names of the arguments that it writes and returns; None if it returns new tensors.
        several: whether it returns several tensors.
    """

    name: str
    full_name: str
    seeded: bool
    written: tuple[tuple[int, str], ...] | None
    several: bool


@functools.cache
def _known(func: Any) -> _Operation:
    schema = func._schema
    written = None
    if any(one.alias_info is not None and one.alias_info.is_write for one in schema.returns):
        arguments = enumerate(schema.arguments)
        written = tuple(
            (at, one.name) for at, one in arguments if one.alias_info is not None and one.alias_info.is_write
        )
    return _Operation(
        name=schema.name.removeprefix("aten::"),
        full_name=func.name(),
        seeded=torch.Tag.nondeterministic_seeded in func.tags,
        written=written,
        several=len(schema.returns) > 1,
    )


def _is_written(value: Any) -> bool:
    return value.alias_info is not None and value.alias_info.is_write


# torch's own tree functions take longer than the operations of tiny trainings.
def _tensors(value: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Append the tensors in nested lists, tuples and dictionaries to a list, and return it."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, list | tuple):
        for part in value:
            _tensors(part, found)
    elif isinstance(value, dict):
        for part in value.values():
            _tensors(part, found)
    return found


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a value with the tensors in nested lists, tuples and dictionaries changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        parts = [_mapped(change, part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {key: _mapped(change, part) for key, part in value.items()}
    return value


def _dispatch(func: Any, args: tuple, kwargs: dict) -> Any:
    tensors = _tensors(kwargs, _tensors(args, []))
    on_device = any(isinstance(tensor, DeviceTensor) for tensor in tensors)
    operation = _known(func)
    name = operation.name
    if not on_device and not _is_cuda(kwargs.get("device")):
        return _on_host(func, name, args, kwargs)
    _refuse_generator(kwargs.get("generator"), "cuda", name)
    if on_device:
        _refuse_strays(func, name, args, tensors)
    if operation.full_name in operations.CPU_ONLY:
        raise NotImplementedError(f"Could not run '{operation.full_name}' with arguments from the 'CUDA' backend.")
    if name in operations.RESHAPED_IN_PLACE:
        raise NotImplementedError(f"{name} of a tensor on the pretended device")
    _count(func, name, args, kwargs)
    out = _computed(func, operation, args, kwargs)
    if operation.written is not None:
        written = [kwargs.get(key, args[at] if at < len(args) else None) for at, key in operation.written]
        return tuple(written) if operation.several else written[0]
    requested = kwargs.get("device")
    to_host = func is aten._local_scalar_dense.default or (requested is not None and not _is_cuda(requested))
    return out if to_host else _mapped(_wrapped, out)


def _on_host(func: Any, name: str, args: tuple, kwargs: dict) -> Any:
    """Run an operation of the host; pinned memory is remembered, not made."""
    _refuse_generator(kwargs.get("generator"), "cpu", name)
    pinned = kwargs.get("pin_memory") or name == "_pin_memory"
    if name == "_pin_memory":
        out = args[0].clone()
    else:
        out = func(*args, **{key: value for key, value in kwargs.items() if key != "pin_memory"})
        pinned = pinned or (name in operations.VIEWS and args and _is_pinned(args[0]))
    if pinned:
        for part in _tensors(out, []):
            STATE.pinned[part] = True
    return out


def _is_pinned(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value in STATE.pinned


def _refuse_generator(generator: torch.Generator | None, wanted: str, name: str) -> None:
    if generator is None:
        return
    found = "cuda" if generator._cdata in STATE.generators else "cpu"
    if found != wanted:
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}' ({name})")


def _refuse_strays(func: Any, name: str, args: tuple, tensors: list[torch.Tensor]) -> None:
    """Refuse tensors of the host among those of the device, where CUDA does."""
    strays = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor)]
    if not strays or func in operations.COPIES or name == "record_stream":
        return
    if func in operations.INDEXED:
        # Indices may be on the host; indices of the device do not index a tensor of the host.
        values = args[2] if len(args) > 2 else None
        if isinstance(args[0], DeviceTensor) and (not _is_stray(values) or values.dim() == 0):
            return
    elif operations.takes_host_numbers(func) and all(tensor.dim() == 0 for tensor in strays):
        return
    shapes = ", ".join(f"{tensor.device.type}{list(tensor.shape)}" for tensor in tensors[:6])
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
        f"({name}: {shapes})"
    )


def _is_stray(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, DeviceTensor)


def _count(func: Any, name: str, args: tuple, kwargs: dict) -> None:
    ledger = STATE.ledger
    if name in operations.WAITING:
        ledger.wait(operations.WAITING[name])
    if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
        ledger.wait("repeat_interleave() without output_size")
    if func in operations.INDEXED:
        _count_indices(name, args[1])
    if func is aten._to_copy.default:
        _count_copy(args[0], kwargs.get("device"), blocking=not kwargs.get("non_blocking"))
    if func is aten.copy_.default:
        target, source, *rest = args
        blocking = not (rest[0] if rest else kwargs.get("non_blocking", False))
        pinned_target = _is_pinned(target)
        _count_copy(source, target.device, blocking=blocking, pinned_target=pinned_target)
    if name in operations.VIEWS:
        return
    use_memory()
    ledger.launch(name)
    accumulates = "index_put" in name and bool(kwargs.get("accumulate", args[3] if len(args) > 3 else False))
    if not accumulates and operations.adds_unordered(name, args, kwargs):
        if not torch.are_deterministic_algorithms_enabled():
            ledger.add_unordered(name)  # index_put(accumulate=True) sorts, and repeats
        elif name in operations.WITHOUT_DETERMINISTIC_ALGORITHM:
            raise RuntimeError(f"{name} does not have a deterministic implementation, but you set ...")


def use_memory() -> None:
    """Run out of memory if a test asked for it."""
    if STATE.launches_left is None:
        return
    STATE.launches_left -= 1
    if STATE.launches_left < 0:
        STATE.launches_left = None
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def _count_indices(name: str, indices: Any) -> None:
    for index in indices:
        if _is_stray(index) and index.dim() > 0:
            STATE.ledger.upload()
            STATE.ledger.wait(f"{name} by indices on the host")
        elif isinstance(index, DeviceTensor) and index.dtype in (torch.bool, torch.uint8):
            STATE.ledger.wait(f"{name} by a mask")


def _count_copy(source: torch.Tensor, target: Any, *, blocking: bool, pinned_target: bool = False) -> None:
    from_device, to_device = isinstance(source, DeviceTensor), _is_cuda(target if target is not None else source.device)
    if STATE.capture is not None and from_device != to_device:
        raise RuntimeError("a capture would copy from or to the same memory of the host in every replay")
    if from_device and not to_device and (blocking or not pinned_target):
        # A copy without blocking into pageable memory still waits until the values are there.
        STATE.ledger.wait("copy to the host")
    if to_device and not from_device:
        STATE.ledger.upload()
        if blocking or not _is_pinned(source):
            STATE.ledger.wait("copy to the device" if blocking else "copy of pageable memory to the device")


def _computed(func: Any, operation: _Operation, args: tuple, kwargs: dict) -> Any:
    plain_args = _mapped(_plain, args)
    plain_kwargs = {key: _mapped(_plain, value) for key, value in kwargs.items() if key != "pin_memory"}
    if plain_kwargs.get("device") is not None:
        plain_kwargs["device"] = _HOST

    def compute() -> Any:
        if operation.seeded and kwargs.get("generator") is None:
            return _with_device_random(lambda: func(*plain_args, **plain_kwargs))
        return func(*plain_args, **plain_kwargs)

    if STATE.capture is None:
        return compute()
    inputs = _tensors(plain_kwargs, _tensors(plain_args, []))
    places = operation.written or ()
    written = [plain_kwargs.get(key, plain_args[at] if at < len(plain_args) else None) for at, key in places]
    return STATE.capture.run(operation.name, compute, inputs, _tensors(written, []))


def plain_tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    return _tensors(value, [])


def _with_device_random(compute: Callable[[], Any]) -> Any:
    """Draw from the generator of the device, not from that of the host."""
    of_host = torch.get_rng_state()
    torch.set_rng_state(STATE.default_generator.get_state())
    try:
        return compute()
    finally:
        STATE.default_generator.set_state(torch.get_rng_state())
        torch.set_rng_state(of_host)
