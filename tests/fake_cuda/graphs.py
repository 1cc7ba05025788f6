"""CUDA graphs of the pretended device: operations are recorded in a capture, and replayed on the same memory.

As on a GPU, a capture computes nothing: what it wrote is put back, and its own memory has senseless numbers until a
replay. It refuses what CUDA refuses: waits of the host, and copies between host and device, whose memory a replay would
read again. It does not know streams, nor memory that libraries keep for themselves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch

from fake_cuda.ledger import Ledger
from fake_cuda.operations import VIEWS
from fake_cuda.tensors import STATE, plain_tensors

_POOLS = count(1)


class CudaGraph:
    """A recorded sequence of operations, in place of `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self._operations: list[tuple[Callable[[], Any], list[torch.Tensor]]] = []
        self._own: list[torch.Tensor] = []
        self._dead: list[torch.Tensor] = []
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._captured = False

    def replay(self) -> None:
        """Compute everything again, in the same memory; one launch."""
        if not self._captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        STATE.ledger.launch("graph")
        # Whatever is read before the replay writes it shows.
        _spoil(self._own)
        for compute, outputs in self._operations:
            for output, value in zip(outputs, plain_tensors(compute()), strict=True):
                if not _shared(output, value):
                    output.copy_(value)
        # Another graph of the pool may use the memory of what nobody holds since the capture.
        _spoil(self._dead)

    def run(
        self, name: str, compute: Callable[[], Any], inputs: list[torch.Tensor], written: list[torch.Tensor]
    ) -> Any:
        """Record an operation; what it writes is put back at the end of the capture."""
        for tensor in written:
            if not any(_shared(tensor, own) for own in self._own):
                self._before.append((tensor, tensor.clone()))
        out = compute()
        outputs = plain_tensors(out)
        new = [output for output in outputs if not any(_shared(output, one) for one in inputs)]
        self._own += new
        if name not in VIEWS:
            self._operations.append((compute, outputs))
        return out

    @contextmanager
    def capture(self, pool: tuple[int, int]) -> Iterator[None]:
        """Record what is launched meanwhile; graphs of one pool share memory."""
        if STATE.capture is not None or self._captured:
            raise RuntimeError("a capture is under way, or the graph has one already")
        STATE.capture = self
        Ledger.capturing = True
        try:
            yield
        finally:
            STATE.capture = None
            Ledger.capturing = False
            for tensor, values in reversed(self._before):
                tensor.copy_(values)
            self._before.clear()
            # Not integers: with them as indices, the capture of a backward pass would stop.
            _spoil([tensor for tensor in self._own if tensor.dtype.is_floating_point])
        shared = STATE.pools.setdefault(pool, [])
        shared += self._own
        self._dead = [tensor for tensor in shared if not STATE.memory.holds(tensor.untyped_storage())]
        self._captured = True


@contextmanager
def graph(cuda_graph: CudaGraph, *, pool: tuple[int, int] | None = None, **_: Any) -> Iterator[None]:
    """Capture a graph, in place of `torch.cuda.graph`."""
    with cuda_graph.capture(pool_handle() if pool is None else pool):
        yield


def pool_handle() -> tuple[int, int]:
    """Return a new pool, in place of `torch.cuda.graph_pool_handle`."""
    return (0, next(_POOLS))


def _shared(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def _spoil(tensors: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor in tensors:
            flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            flat.fill_(torch.nan if tensor.dtype.is_floating_point else True if tensor.dtype == torch.bool else 77)
