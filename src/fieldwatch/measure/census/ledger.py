"""Ledger of claims: records the first owner of each storage."""

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
# The bare method: the Python wrapper takes three times as long.
_is_shared: Callable[[Storage], bool] = _storage.is_shared
_DTYPE_NAMES: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as ``float32`` for ``torch.float32``."""
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


@dataclass(slots=True)
class Claim:
    """The first owner of a storage. See :class:`~fieldwatch.measure.census.entry.CensusEntry` for the other attributes.

    Attributes:
        span: size of the memory range that starts at the address, in bytes; ``nbytes`` is less if an earlier claim
            covers a part of it.
        from_torch: whether torch's allocator created the storage, as opposed to a library, a file or another process.
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
    """Collects claims in order of precedence.

    Attributes:
        device: device of the census; storages on other devices are only counted.
    """

    device: torch.device
    _claims: dict[tuple[int, int], Claim] = field(default_factory=dict[tuple[int, int], Claim])
    _elsewhere: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    _noted: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def note(self, tensor: Tensor, kind: Kind, component: str, name: str) -> None:
        """Claim the memory of a tensor; the same tensor under a second name is ignored."""
        if id(tensor) in self._noted:
            return
        self._noted[id(tensor)] = tensor  # keeps the tensor alive, so that no other object gets its id
        for piece, storage in pieces_of(tensor):
            if storage.device != self.device:
                self._note_elsewhere(storage)
                continue
            address = address_of(storage)
            nbytes = storage.nbytes()
            # Key by address and size: a library may expose a part of a storage at the same address.
            known = self._claims.get((address, nbytes))
            # Address 0 means that there is no memory to claim.
            if known is not None:
                known.views += 1
            elif address:
                names = kind, component, name
                self._claims[address, nbytes] = claim_of(piece, storage, address, names)

    def _note_elsewhere(self, storage: Storage) -> None:
        # Meta tensors have no memory.
        if storage.device.type != "meta":
            self._elsewhere[address_of(storage)] = str(storage.device), storage.nbytes()

    def note_array(self, array: NDArray[Any], component: str, name: str) -> None:
        """Claim the memory of a numpy array as registered data."""
        if self.device.type != "cpu":
            return
        base = array
        # A view keeps its base array alive, and the base occupies the memory.
        while isinstance(base.base, np.ndarray):
            base = base.base
        first, end = np.lib.array_utils.byte_bounds(base)
        self.claim(
            Claim("data", component, name, first, end - first, end - first, array.shape, str(array.dtype), False)
        )

    def claim(self, claim: Claim) -> None:
        """Add an existing claim; if the storage already has an owner, count one more view.

        Tensors saved by autograd do not count as views of an owner.
        """
        known = self._claims.setdefault((claim.address, claim.span), claim)
        if known is not claim and claim.kind != "saved":
            known.views += 1

    def elsewhere(self) -> dict[str, int]:
        """Return the bytes found on other devices, by device."""
        sizes: dict[str, int] = {}
        for device, nbytes in self._elsewhere.values():
            sizes[device] = sizes.get(device, 0) + nbytes
        return sizes

    def settled(self) -> list[Claim]:
        """Return the claims in order of precedence, with every byte counted once.

        Storages of different libraries may share memory (``from_numpy``, DLPack). The earlier claim keeps the shared
        bytes.
        """
        claims = [claim for claim in self._claims.values() if claim.span]
        by_address = sorted(claims, key=attrgetter("address"))
        # Common case: no two storages overlap, so every claim keeps all of its bytes.
        if all(a.address + a.span <= b.address for a, b in pairwise(by_address)):
            return claims
        taken = _ClaimedRanges()
        for claim in claims:
            claim.nbytes = taken.take(claim.address, claim.address + claim.span)
        return [claim for claim in claims if claim.nbytes]


class _ClaimedRanges:
    """Memory that already has an owner, as sorted disjoint address ranges."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def take(self, first: int, end: int) -> int:
        """Claim a range and return how many of its bytes were unclaimed."""
        # All ranges that touch the new one are adjacent in the sorted list and are merged with it.
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
    """Create a claim on the storage of a strided tensor.

    Args:
        piece: strided tensor.
        storage: storage of the tensor.
        address: start address of the storage.
        names: kind, component and name of the owner.
    """
    nbytes = storage.nbytes()
    # Storages from other libraries (`from_numpy`, DLPack) and mapped files are not resizable.
    from_torch = storage.resizable() and not _is_shared(storage)
    return Claim(*names, address, nbytes, nbytes, shape_of(piece), dtype_name(piece.dtype), from_torch)
