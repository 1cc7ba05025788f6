"""What autograd keeps for backward, watched while it is kept."""

from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fieldwatch.measure.census.ledger import Claim, claim_of
from fieldwatch.measure.census.pieces import address_of, pieces_of

OUTSIDE = "outside"
"""The label of what is saved outside every span."""

# torch has no public way to see whose hooks are on top, or whether hooks are allowed.
_torch: Any = torch
_autograd: Any = _torch._C._autograd  # noqa: SLF001  see above
_top_hooks: Callable[[bool], Any] = _autograd._top_saved_tensors_default_hooks  # noqa: SLF001  see above
_hooks_allowed: Callable[[], bool] = _autograd._saved_tensors_hooks_is_enabled  # noqa: SLF001  see above
_version: Callable[[Tensor], int] = attrgetter("_version")


class SavedTensors:
    """Counts the memory that autograd keeps for backward: each storage once, for exactly as long as it is kept.

    Every tensor that an operation saves is wrapped in a small object that lives as long as the graph keeps it.
    Gradients keep their bits, and a tensor that was changed in place before backward raises as it does without this.

    What it cannot see stays in the census' unattributed rest: what is saved under hooks that are entered inside
    (``save_on_cpu``, ``checkpoint``), in other threads, as plain attributes of a custom function's context, or before
    :meth:`push`. torch refuses ``torch.func.grad`` and its kin while any such hooks are active.

    Args:
        device: what is saved elsewhere is not counted.

    Attributes:
        label: the span that saves at this moment; set it when a span begins and when it ends.
        alive: bytes kept now.
        peak: the most since :meth:`push`.
        hidden: True after a :meth:`push` that found hooks of somebody else around the loop, or hooks forbidden; those
            keep working, and nothing is counted.
    """

    def __init__(self, device: torch.device) -> None:
        self.label = OUTSIDE
        self.alive = self.peak = 0
        self.hidden = False
        self._device = device
        self._owned: Collection[int] = frozenset()
        self._saved_storages: dict[int, _SavedStorage] = {}
        self._hooks: saved_tensors_hooks | None = None
        self._counting = self._rising = False
        self._at_peak: list[Claim] = []

    def push(self, owned: Collection[int] = frozenset()) -> None:
        """Begin to count, and a new peak with it.

        Args:
            owned: where the owners' storages begin (:meth:`Census.addresses`); these are not counted when saved.
        """
        self._owned = owned
        self.peak = self.alive
        self._rising = True
        if self._hooks is None:
            # Hooks stack: ours on top of somebody else's would hide tensors from them.
            self.hidden = _top_hooks(False) is not None or not _hooks_allowed()
            if self.hidden:
                return
            self._hooks = saved_tensors_hooks(self._pack, _unpack)
            self._hooks.__enter__()
        self._counting = True

    def pop(self) -> None:
        """Stop counting what is saved from now on; what is kept already stays counted until it is let go."""
        self._counting = False
        top = _top_hooks(False)
        # Hooks that the loop entered since and has not left lie on top of ours: then ours stay, idle, until they are on
        # top again. Popping would take the loop's.
        if self._hooks is not None and top is not None and top[0] is self._hooks.pack_hook:
            self._hooks.__exit__()
            self._hooks = None

    def __enter__(self) -> Self:
        self.push(self._owned)
        return self

    def __exit__(self, *_: object) -> None:
        self.pop()

    def claims(self) -> list[Claim]:
        """The storages that are kept now."""
        return [saved.claim for saved in self._saved_storages.values()]

    def peak_by_label(self) -> dict[str, int]:
        """Bytes that were kept at the peak, by the span that saved them."""
        peak_claims = self.claims() if self._rising else self._at_peak
        sizes: dict[str, int] = {}
        for claim in peak_claims:
            sizes[claim.component] = sizes.get(claim.component, 0) + claim.nbytes
        return sizes

    def _pack(self, tensor: Tensor) -> "_Packed":
        saved = self._saved_of(tensor) if self._counting else ()
        # An output of the node that saves it must not be held itself: it would hold the node.
        return _Packed(tensor if tensor.is_leaf else tensor.detach(), _version(tensor), saved, self)

    def _saved_of(self, tensor: Tensor) -> "tuple[_SavedStorage, ...]":
        saved_storages: list[_SavedStorage] = []
        for piece, storage in pieces_of(tensor):
            address = address_of(storage) if storage.device == self._device else 0
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
        """Called when the graph lets go of one of the tensors that look at a storage."""
        saved.references -= 1
        if saved.references:
            return
        # The peak ends with the first release after it: then its claims are noted, once per rise, not at every save.
        if self._rising and self.alive == self.peak:
            self._at_peak = self.claims()
        self._rising = False
        del self._saved_storages[saved.claim.address]
        self.alive -= saved.claim.nbytes


class _SavedStorage:
    """A storage that autograd keeps, and how many saved tensors look at it."""

    __slots__ = ("claim", "references")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.references = 0


class _Packed:
    """What the graph keeps in place of a tensor; when it lets go of this, it has let go of the tensor."""

    __slots__ = ("_counter", "_saved_storages", "tensor", "version")

    def __init__(self, tensor: Tensor, version: int, saved: tuple[_SavedStorage, ...], counter: SavedTensors) -> None:
        self.tensor = tensor
        self.version = version
        self._saved_storages = saved
        self._counter = counter

    def __del__(self) -> None:
        for saved in self._saved_storages:
            self._counter._release(saved)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  one thing in two classes


def _unpack(packed: _Packed) -> Tensor:
    """Hand a saved tensor back, if nobody has changed it meanwhile: torch leaves this check to the hooks.

    Raises:
        RuntimeError: an operation in place changed it after it was saved.
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
