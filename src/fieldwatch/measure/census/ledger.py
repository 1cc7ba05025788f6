"""Who was first to claim which storage."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.measure.census.entry import Kind
from fieldwatch.measure.census.pieces import Storage, address_of, pieces_of, shape_of

_storage: Any = torch.UntypedStorage.__base__
_is_shared: Callable[[Storage], bool] = _storage.is_shared  # the bare method: a third of the time
_DTYPE_NAMES: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


@dataclass(slots=True)
class Claim:
    """The first owner of a storage. Names are explained at :class:`~fieldwatch.measure.census.entry.CensusEntry`.

    Attributes:
        span: bytes from the address on; ``nbytes`` is less where an earlier claim holds a part of them.
        from_torch: torch's own allocator made it, and not a library, a file or another process.
    """

    kind: Kind
    component: str
    name: str
    address: int
    span: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    from_torch: bool
    views: int = 1


@dataclass(slots=True)
class ClaimLedger:
    """Collects claims in the order of their priority.

    Attributes:
        device: storages elsewhere are counted apart.
    """

    device: torch.device
    _claims: dict[tuple[int, int], Claim] = field(default_factory=dict[tuple[int, int], Claim])
    _elsewhere: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    _noted: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def note(self, tensor: Tensor, kind: Kind, component: str, name: str) -> None:
        """Claim a tensor's memory; the same tensor under a second name is nothing new."""
        if id(tensor) in self._noted:
            return
        self._noted[id(tensor)] = tensor  # held, so that nothing else gets its id while the walk lasts
        for piece, storage in pieces_of(tensor):
            if storage.device != self.device:
                self._note_elsewhere(storage)
                continue
            address = address_of(storage)
            nbytes = storage.nbytes()
            # By address and size: a library may hand out a part of a storage at the same address.
            known = self._claims.get((address, nbytes))
            if known is not None:
                known.views += 1
            elif address:
                names = kind, component, name
                self._claims[address, nbytes] = claim_of(piece, storage, address, names)

    def _note_elsewhere(self, storage: Storage) -> None:
        if storage.device.type != "meta":
            self._elsewhere[address_of(storage)] = str(storage.device), storage.nbytes()

    def note_array(self, array: NDArray[Any], component: str, name: str) -> None:
        """Claim what a numpy array stands on, as registered data."""
        if self.device.type != "cpu":
            return
        base = array
        # A view keeps its base alive, and the base is what takes memory.
        while isinstance(base.base, np.ndarray):
            base = base.base
        first, end = np.lib.array_utils.byte_bounds(base)
        self.claim(
            Claim("data", component, name, first, end - first, end - first, array.shape, str(array.dtype), False)
        )

    def claim(self, claim: Claim) -> None:
        """Enter a claim that was made elsewhere; one more view where the storage has an owner.

        What autograd saves is no view of an owner.
        """
        known = self._claims.setdefault((claim.address, claim.span), claim)
        if known is not claim and claim.kind != "saved":
            known.views += 1

    def elsewhere(self) -> dict[str, int]:
        """Bytes found on other devices, by device."""
        sizes: dict[str, int] = {}
        for device, nbytes in self._elsewhere.values():
            sizes[device] = sizes.get(device, 0) + nbytes
        return sizes

    def settled(self) -> list[Claim]:
        """The claims in the order they were made, with every byte counted once.

        Storages of different libraries may lie on the same memory (``from_numpy``, dlpack): the earlier claim keeps it.
        """
        claims = [claim for claim in self._claims.values() if claim.span]
        by_address = sorted(claims, key=attrgetter("address"))
        # The usual case: no two storages overlap, and every claim keeps all its bytes.
        if all(a.address + a.span <= b.address for a, b in pairwise(by_address)):
            return claims
        taken = _ClaimedRanges()
        for claim in claims:
            claim.nbytes = taken.take(claim.address, claim.address + claim.span)
        return [claim for claim in claims if claim.nbytes]


class _ClaimedRanges:
    """Memory that has an owner already: disjoint ranges, in order."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def take(self, first: int, end: int) -> int:
        """Take a range, and say how many of its bytes were free."""
        # All ranges that the new one touches are neighbors in the sorted list; they are merged with it.
        low = bisect_right(self._ranges, first, key=itemgetter(1))
        high = bisect_left(self._ranges, end, key=itemgetter(0))
        touched = self._ranges[low:high]
        free = end - first - sum(min(end, b) - max(first, a) for a, b in touched)
        if touched:
            first = min(first, touched[0][0])
            end = max(end, touched[-1][1])
        self._ranges[low:high] = [(first, end)]
        return free


def claim_of(piece: Tensor, storage: Storage, address: int, names: tuple[Kind, str, str]) -> Claim:
    """A claim on the storage of a strided tensor.

    Args:
        piece: the tensor.
        storage: what it stands on.
        address: where that begins.
        names: kind, component and name of the owner.
    """
    nbytes = storage.nbytes()
    from_torch = storage.resizable() and not _is_shared(storage)
    return Claim(*names, address, nbytes, nbytes, shape_of(piece), dtype_name(piece.dtype), from_torch)
