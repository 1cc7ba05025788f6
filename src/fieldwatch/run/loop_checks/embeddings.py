"""`EmbeddingCheck`: rows of embeddings that are looked up and were never trained."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.run.loop_checks.left_behind import LeftBehind
from fieldwatch.run.loop_checks.trainable import submodules_of

_STEPS = 32
"""Number of look-ups in training at which the padding is counted."""
_MOST_ROWS = 1 << 20
"""Rows of a table above which its look-ups are not counted."""
_MOST_TABLES = 16
_SEQUENCES = 2
"""Least number of dimensions of the indices of sequences."""


class _LookUp(LeftBehind):
    """Forward hook that passes on the indices of a look-up, and that copies of a module leave behind."""

    def __init__(self, look: Callable[[Tensor], None]) -> None:
        self._look = look

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], _output: object) -> None:
        """Pass on indices."""
        ids = args[0] if args else None
        if not torch.compiler.is_compiling() and type(ids) is Tensor and ids.numel():
            self._look(ids)


class EmbeddingCheck:
    """Counts the look-ups of embeddings: of the row for padding in training, and of all rows in evaluations.

    Hooks are there for the first look-ups, and for the time of an evaluation, only.
    """

    def __init__(self) -> None:
        self._padding: list[_PaddingHook] = []
        self._tables: list[_Table] = []
        self._evaluations = 0

    def open(self, modules: Mapping[str, nn.Module]) -> None:
        """Find the embeddings of modules, each once."""
        seen: set[int] = set()
        for item, root in modules.items():
            # A compiled module would be compiled again for each hook.
            if hasattr(root, "_orig_mod") or getattr(root, "_compiled_call_impl", None) is not None:
                continue
            for path, module in submodules_of(root, item):
                if isinstance(module, nn.Embedding) and id(module) not in seen and len(seen) < _MOST_TABLES:
                    seen.add(id(module))
                    self._tables.append(_Table(path, module))
                    if module.padding_idx is not None:
                        self._padding.append(_PaddingHook(path, module))

    def close(self) -> None:
        """Remove all hooks."""
        for hook in (*self._padding, *self._tables):
            hook.remove()
        self._tables = []

    @property
    def pending(self) -> bool:
        """Whether look-ups of the training are being counted."""
        return bool(self._padding)

    def padding(self) -> Iterator[dict[str, Any]]:
        """Yield the facts of each embedding whose row for padding was looked up as a value; each once."""
        done = [hook for hook in self._padding if hook.count >= _STEPS]
        for hook in done:
            self._padding.remove(hook)
            hook.remove()
            facts = hook.facts()
            if facts is not None:
                yield facts

    def begin_evaluation(self) -> None:
        """Count look-ups from now on."""
        for table in self._tables:
            table.watch()

    def end_evaluation(self, optimizers: Sequence[Optimizer]) -> Iterator[dict[str, Any]]:
        """Stop counting, and yield the facts of each embedding with look-ups of rows that were never trained."""
        used = False
        for table in self._tables:
            table.remove()
            used = used or table.counts is not None
        self._evaluations += used
        # At powers of two, because this reads the device.
        due = used and not self._evaluations & (self._evaluations - 1)
        for table in self._tables:
            counts = table.counts
            table.counts = None
            if due and counts is not None:
                untouched = _untouched(table.module, optimizers)
                if untouched is not None:
                    share = float((counts * untouched).sum() / counts.sum().clamp_min(1))
                    rows = [int(row) for row in torch.nonzero((counts > 0) & untouched)[:3, 0]]
                    # An earlier finding is taken back by a share of 0.
                    if rows or table.reported:
                        table.reported = True
                        yield {"name": table.path, "share": share, "rows": rows, "evaluations": self._evaluations}


class _Table:
    """An embedding whose look-ups are counted during evaluations."""

    def __init__(self, path: str, module: nn.Embedding) -> None:
        self.path = path
        self.module = module
        self.counts: Float[Tensor, " rows"] | None = None
        self.reported = False
        self._handle: Any = None

    def watch(self) -> None:
        if self._handle is None and self.module.num_embeddings <= _MOST_ROWS:
            self._handle = self.module.register_forward_hook(_LookUp(self._count))

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _count(self, ids: Tensor) -> None:
        # Sequences that are written token by token are filled up with tokens that no output depends on.
        single = ids.dim() < _SEQUENCES or ids.shape[-1] == 1
        if single and not torch.is_grad_enabled():
            now = torch.zeros(self.module.num_embeddings, device=ids.device)
            now.index_add_(0, ids.reshape(-1).long(), torch.ones(ids.numel(), device=ids.device))
            self.counts = now if self.counts is None else self.counts + now


class _PaddingHook:
    """Counts, in the first look-ups of the training, how often the row for padding stands for a value.

    Padding fills sequences at one of their ends: alone, or between other entries, its index is a value.
    """

    def __init__(self, path: str, module: nn.Embedding) -> None:
        self.count = 0
        self._path = path
        self._index = int(cast("int", module.padding_idx))
        self._share: Float[Tensor, ""] | None = None
        self._handle = module.register_forward_hook(_LookUp(self._look))

    def remove(self) -> None:
        self._handle.remove()

    def facts(self) -> dict[str, Any] | None:
        """Return what was counted; None if the row was never looked up as a value."""
        share = 0.0 if self._share is None else float(self._share) / max(self.count, 1)
        return {"name": self._path, "index": self._index, "share": share} if share > 0 else None

    def _look(self, ids: Tensor) -> None:
        if self.count >= _STEPS or not torch.is_grad_enabled():
            return
        self.count += 1
        share = _values(ids == self._index).float().mean()
        self._share = share if self._share is None else self._share + share


def _values(blank: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Return which blank entries are no padding: those of single indices, and those between other entries."""
    if blank.dim() < _SEQUENCES or blank.shape[-1] == 1:
        return blank
    filled: Int[Tensor, ...] = (~blank).int()
    before = filled.cumsum(dim=-1) > 0
    behind = filled.flip(-1).cumsum(dim=-1).flip(-1) > 0
    return blank & before & behind


def _untouched(module: nn.Embedding, optimizers: Sequence[Optimizer]) -> Bool[Tensor, " rows"] | None:
    """Return which rows have never had a gradient, as the moments of their optimizer show; None if unknown."""
    weight = module.weight
    for optimizer in optimizers:
        state = cast("dict[str, Any]", optimizer.state.get(weight, {}))
        for name in ("exp_avg_sq", "square_avg", "sum", "momentum_buffer"):
            moment = state.get(name)
            if isinstance(moment, Tensor) and moment.shape == weight.shape:
                untouched = (moment == 0).all(dim=1)
                if module.padding_idx is not None:
                    untouched[module.padding_idx] = False
                return untouched
    return None
