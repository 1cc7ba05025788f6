"""Takes a census: walk the owners, then reconcile with the allocator."""

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


def take_census(  # noqa: PLR0913  all but the first by name
    watched: ParameterGroups,
    *,
    optimizers: Sequence[Optimizer],
    data: Mapping[str, Any] = _NO_DATA,
    device: torch.device,
    saved: SavedTensors | None = None,
    before: Census | None = None,
    allocator: Allocator | None = None,
) -> Census:
    """Account for every byte of a device. Owners are asked anew, nothing is copied, no device is waited for.

    Args:
        watched: the groups of parameters.
        optimizers: whose state is counted.
        data: what else the run holds, by name: images, neighbour tables, caches; looked into as deep as it goes.
        device: whose memory; tensors elsewhere are counted by device only.
        saved: what autograd keeps, if it was watched in this step.
        before: a census from the start of the step; tells this step's workspace from an older rest.
        allocator: what to reconcile with; the device's own if left out.

    Returns:
        The account. Storage with several owners belongs to the first of: parameters, gradients, optimizer, buffers,
        data, saved.

    Raises:
        ValueError: the device is neither a CPU nor a CUDA device.
    """
    device = numbered(device)
    allocator = allocator or allocator_of(device)
    ledger = ClaimLedger(device)
    note_owners(ledger, watched, optimizers)
    truncated = _note_data(ledger, data)
    for claim in saved.claims() if saved is not None else ():
        ledger.claim(claim)
    # Owners first, the allocator after: the ledger keeps what it has noted alive, so that the reading includes it.
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
    """Claim registered data; returns the names of what was too large to be walked to its end."""
    truncated: list[str] = []
    for component, value in data.items():
        try:
            for path, found in find_tensors(value):
                name = path or component
                if isinstance(found, Tensor):
                    ledger.note(found, "data", component, name)
                else:
                    ledger.note_array(found, component, name)
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
    """Bytes of nobody that were not nobody's at the start of the step."""
    if before is None:
        return 0
    if placement.unowned is None or before.unowned is None:
        # Without a list of blocks only the growth of the rest can be told.
        return max(0, min(remainder, remainder - before.remainder))
    return sum(block.nbytes for address, block in placement.unowned.items() if before.unowned.get(address) != block)


def _sites(placement: Placement, before: Census | None) -> dict[str, int]:
    """Unattributed bytes by the line that asked for them, where the allocator keeps a history."""
    older = before.unowned if before is not None else None
    found: dict[str, int] = {}
    for address, block in (placement.unowned or {}).items():
        if block.site and (older is None or older.get(address) == block):
            found[block.site] = found.get(block.site, 0) + block.nbytes
    most = sorted(found, key=found.__getitem__, reverse=True)
    return {site: found[site] for site in most[:_TOP_SITES]}
