"""Track the memory that autograd keeps for the backward pass."""

from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fieldwatch.measure.census.ledger import Claim, claim_of
from fieldwatch.measure.census.pieces import address_of, pieces_of

OUTSIDE = "outside"
"""Label of tensors that are saved outside all spans."""

# torch has no public API to see which hooks are on top of the stack, or whether hooks are allowed.
_torch: Any = torch
_autograd: Any = _torch._C._autograd  # noqa: SLF001  see above
_top_hooks: Callable[[bool], Any] = _autograd._top_saved_tensors_default_hooks  # noqa: SLF001  see above
_hooks_allowed: Callable[[], bool] = _autograd._saved_tensors_hooks_is_enabled  # noqa: SLF001  see above
_version: Callable[[Tensor], int] = attrgetter("_version")


class SavedTensors:
    """Counts the memory that autograd keeps for backward: each storage once, exactly as long as it is kept.

    Every saved tensor is wrapped in a small object with the lifetime of the graph's reference. Gradients are bitwise
    unchanged, and in-place modification before backward raises the same error as without this class.

    Some saved tensors are not visible and end up in the unattributed rest of the census: those saved under nested hooks
    (``save_on_cpu``, ``checkpoint``), in other threads, as plain attributes of a custom function's context, or before
    :meth:`push`. torch rejects ``torch.func.grad`` and similar transforms while saved-tensor hooks are active.

    Args:
        device: device whose memory is counted.

    Attributes:
        label: current span; set it when a span begins and when it ends.
        alive: bytes kept now.
        peak: peak of ``alive`` since :meth:`push`.
        hidden: whether the last :meth:`push` found other hooks around the loop, or hooks disabled. The other hooks
            remain in effect, and nothing is counted.
    """

    def __init__(self, device: torch.device) -> None:
        self.label = OUTSIDE
        self.alive = self.peak = 0
        self.hidden = False
        self._device = device
        self._owned: Collection[int] = frozenset()
        self._saved_storages: dict[int, _SavedStorage] = {}
        self._hooks: saved_tensors_hooks | None = None
        # `_rising`: no storage has been released since the peak, so the current claims are those at the peak.
        self._counting = self._rising = False
        self._at_peak: list[Claim] = []

    def push(self, owned: Collection[int] = frozenset()) -> None:
        """Start counting and reset the peak.

        Args:
            owned: start addresses of the owners' storages (:meth:`Census.addresses`), which are not counted.
        """
        self._owned = owned
        self.peak = self.alive
        self._rising = True
        if self._hooks is None:
            # Only the topmost hooks are called: installing ours would disable existing ones, such as `save_on_cpu`.
            self.hidden = _top_hooks(False) is not None or not _hooks_allowed()
            if self.hidden:
                return
            self._hooks = saved_tensors_hooks(self._pack, _unpack)
            self._hooks.__enter__()
        self._counting = True

    def pop(self) -> None:
        """Stop counting new tensors. Tensors that are already counted remain so until they are released."""
        self._counting = False
        top = _top_hooks(False)
        # If the loop has pushed other hooks and not popped them yet, ours are not on top: popping would remove the
        # loop's hooks. Leave ours installed but idle until they are on top again.
        if self._hooks is not None and top is not None and top[0] is self._hooks.pack_hook:
            self._hooks.__exit__()
            self._hooks = None

    def __enter__(self) -> Self:
        self.push(self._owned)
        return self

    def __exit__(self, *_: object) -> None:
        self.pop()

    def claims(self) -> list[Claim]:
        """Return claims on the storages that are kept now."""
        return [saved.claim for saved in self._saved_storages.values()]

    def peak_by_label(self) -> dict[str, int]:
        """Return the bytes that were kept at the peak, by the span that saved them."""
        peak_claims = self.claims() if self._rising else self._at_peak
        sizes: dict[str, int] = {}
        for claim in peak_claims:
            sizes[claim.component] = sizes.get(claim.component, 0) + claim.nbytes
        return sizes

    def _pack(self, tensor: Tensor) -> "_Packed":
        saved = self._saved_of(tensor) if self._counting else ()
        # Detach non-leaf tensors: an output saved by its own node would create a reference cycle through the graph.
        return _Packed(tensor if tensor.is_leaf else tensor.detach(), _version(tensor), saved, self)

    def _saved_of(self, tensor: Tensor) -> "tuple[_SavedStorage, ...]":
        saved_storages: list[_SavedStorage] = []
        for piece, storage in pieces_of(tensor):
            address = address_of(storage) if storage.device == self._device else 0
            # Parameters and buffers are saved too, but the census already counts them for their owners.
            if not address or address in self._owned:
                continue
            saved = self._saved_storages.get(address)
            if saved is None:
                saved = self._saved_storages[address] = _SavedStorage(
                    claim_of(piece, storage, address, ("saved", self.label, ""))
                )
                self.alive += saved.claim.nbytes
                if self.alive > self.peak:
                    self.peak = self.alive
                    self._rising = True
            saved.references += 1
            saved_storages.append(saved)
        return tuple(saved_storages)

    def _release(self, saved: "_SavedStorage") -> None:
        """Handle the release of one saved tensor on a storage."""
        saved.references -= 1
        if saved.references:
            return
        # Record the claims at the peak when the first storage is released after it: once per rise, not at every save.
        if self._rising and self.alive == self.peak:
            self._at_peak = self.claims()
        self._rising = False
        del self._saved_storages[saved.claim.address]
        self.alive -= saved.claim.nbytes


class _SavedStorage:
    """A storage that autograd keeps, with the number of saved tensors on it."""

    __slots__ = ("claim", "references")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.references = 0


class _Packed:
    """Wrapper that the graph keeps in place of a tensor; its deletion signals that the tensor was released."""

    __slots__ = ("_counter", "_saved_storages", "tensor", "version")

    def __init__(self, tensor: Tensor, version: int, saved: tuple[_SavedStorage, ...], counter: SavedTensors) -> None:
        self.tensor = tensor
        self.version = version
        self._saved_storages = saved
        self._counter = counter

    def __del__(self) -> None:
        for saved in self._saved_storages:
            self._counter._release(saved)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  both classes belong together


def _unpack(packed: _Packed) -> Tensor:
    """Return a saved tensor after checking that it was not modified in place; torch leaves this check to the hooks.

    Raises:
        RuntimeError: if the tensor was modified in place after it was saved.
    """
    tensor = packed.tensor
    now = _version(packed.tensor)
    if now != packed.version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.type()} {list(tensor.shape)}] is at version {now}; expected version {packed.version} instead. "
            "Hint: enable anomaly detection to find the operation that failed to compute its gradient, "
            "with torch.autograd.set_detect_anomaly(True)."
        )
    return tensor
