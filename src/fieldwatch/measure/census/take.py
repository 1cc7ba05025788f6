"""Take a census: collect the tensors of all owners, then reconcile them with the allocator."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.measure.census.allocator import allocator_of, numbered
from fieldwatch.measure.census.census import Census
from fieldwatch.measure.census.entry import CensusEntry
from fieldwatch.measure.census.find_tensors import find_tensors
from fieldwatch.measure.census.ledger import Claim, ClaimLedger
from fieldwatch.measure.census.owners import note_owners
from fieldwatch.measure.census.reading import Allocator, Placement
from fieldwatch.measure.census.saved import SavedTensors
from fieldwatch.measure.parameter_groups import ParameterGroups

_NO_DATA: Mapping[str, Any] = MappingProxyType({})
_TOP_SITES = 10


def take_census(  # noqa: PLR0913  keyword-only except the first
    watched: ParameterGroups,
    *,
    optimizers: Sequence[Optimizer],
    data: Mapping[str, Any] = _NO_DATA,
    device: torch.device,
    saved: SavedTensors | None = None,
    before: Census | None = None,
    allocator: Allocator | None = None,
) -> Census:
    """Account for every allocated byte of a device, without copies and without synchronization.

    Args:
        watched: watched parameter groups.
        optimizers: optimizers whose state is counted.
        data: other objects of the run by name, such as images, neighbor tables and caches; searched recursively.
        device: device of the census; tensors on other devices are only counted.
        saved: tracker of the tensors saved by autograd, if it was active in this step.
        before: census from the start of the step, to distinguish this step's workspace from older allocations.
        allocator: allocator to reconcile with; by default, that of the device.

    Returns:
        The census. A storage with several owners belongs to the first of: parameters, gradients, optimizer, buffers,
        data, saved.

    Raises:
        ValueError: if the device is neither a CPU nor a CUDA device.
    """
    # Storages report an explicit index, so "cuda" must be resolved before devices are compared.
    device = numbered(device)
    allocator = allocator or allocator_of(device)
    ledger = ClaimLedger(device)
    note_owners(ledger, watched, optimizers)
    truncated = _note_data(ledger, data)
    for claim in saved.claims() if saved is not None else ():
        ledger.claim(claim)
    # Read the allocator after the owners: the ledger keeps the claimed tensors alive, so the reading includes them.
    claims = ledger.settled()
    reading = allocator.read()
    placement = reading.place(claims)
    pairs = list(zip(claims, placement.blocks, strict=True))
    entries = [_entry(claim) for claim, block in pairs if block is not None]
    remainder = reading.allocated - sum(entry.nbytes for entry in entries) - placement.rounding
    return Census(
        device=device,
        allocated=reading.allocated,
        reserved=reading.reserved,
        source=reading.source,
        owned_entries=tuple(entry for entry in entries if entry.kind != "saved"),
        saved_entries=tuple(entry for entry in entries if entry.kind == "saved"),
        saved_peak=saved.peak if saved is not None else 0,
        rounding=placement.rounding,
        workspace=_workspace(remainder, placement, before),
        foreign=tuple(_entry(claim) for claim, block in pairs if block is None),
        elsewhere=ledger.elsewhere(),
        sites=_sites(placement, before),
        truncated=truncated,
        unowned=placement.unowned,
    )


def _note_data(ledger: ClaimLedger, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Claim the registered data; return the names of objects that were too large to be searched completely."""
    truncated: list[str] = []
    for component, value in data.items():
        try:
            for path, tensor in find_tensors(value):
                name = path or component
                if isinstance(tensor, Tensor):
                    ledger.note(tensor, "data", component, name)
                else:
                    ledger.note_array(tensor, component, name)
        except OverflowError:
            truncated.append(component)
    return tuple(truncated)


def _entry(claim: Claim) -> CensusEntry:
    return CensusEntry(
        kind=claim.kind,
        component=claim.component,
        name=claim.name,
        nbytes=claim.nbytes,
        shape=claim.shape,
        dtype=claim.dtype,
        views=claim.views,
        address=claim.address,
    )


def _workspace(remainder: int, placement: Placement, before: Census | None) -> int:
    """Return the bytes without an owner that were allocated since the start of the step."""
    # Without an earlier census, old and new allocations cannot be distinguished.
    if before is None:
        return 0
    if placement.unowned is None or before.unowned is None:
        # Without a list of blocks, only the growth of the remainder is known.
        return max(0, min(remainder, remainder - before.remainder))
    return sum(block.nbytes for address, block in placement.unowned.items() if before.unowned.get(address) != block)


def _sites(placement: Placement, before: Census | None) -> dict[str, int]:
    """Return unattributed bytes by the line that requested them, largest first, if the allocator keeps a history."""
    older = before.unowned if before is not None else None
    sizes: dict[str, int] = {}
    for address, block in (placement.unowned or {}).items():
        if block.site and (older is None or older.get(address) == block):
            sizes[block.site] = sizes.get(block.site, 0) + block.nbytes
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)
    return {site: sizes[site] for site in largest[:_TOP_SITES]}
