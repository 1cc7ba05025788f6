"""State of all random number generators of a run."""

import random
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fieldwatch.checkpoint.incident import CheckpointError

AnyGenerator = torch.Generator | np.random.Generator
_NUMPY_SEEDS = 2**32
"""Number of seeds that numpy's global generator accepts."""


class RandomState:
    """State of the global generators of Python, numpy and torch, of every CUDA device, and of named generators.

    CUDA generators are included only if CUDA has been initialized.

    Args:
        generators: additional generators by name, such as ``RandomState(rays=torch.Generator())``.
    """

    def __init__(self, **generators: AnyGenerator) -> None:
        self._generators = generators

    def state_dict(self) -> dict[str, Any]:
        """Return all states as plain values and arrays."""
        return {
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - the global generator is meant
            "torch": torch.get_rng_state(),
            "cuda": _cuda_states(),
            "generators": {name: _state_of(generator) for name, generator in self._generators.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Restore all states.

        Raises:
            CheckpointError: if the named generators or their types differ from the stored ones.
        """
        stored = state_dict["generators"]
        if stored.keys() != self._generators.keys():
            names = f"{sorted(self._generators)}, the stored state has {sorted(stored)}"
            raise CheckpointError(f"RandomState has the generators {names}: pass the same names")
        for name, generator in self._generators.items():
            _set_state(name, generator, stored[name])
        random.setstate(state_dict["python"])
        np.random.set_state(state_dict["numpy"])  # noqa: NPY002 - the global generator is meant
        torch.set_rng_state(state_dict["torch"])
        _set_cuda_states(state_dict["cuda"])


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch, and those of every CUDA device.

    Call it before the model is built. Checkpoints store these generators, so a resumed run continues with their state.

    Args:
        seed: the seed, 0 or more; numpy takes it modulo 2**32.
    """
    random.seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)  # noqa: NPY002 - the global generator is meant
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]  torch leaves its parameter without a type


@contextmanager
def preserve_random_state(**generators: AnyGenerator) -> Generator[None]:
    """Restore all random states on exit, so that an evaluation does not affect training.

    Args:
        generators: generators by name, in addition to the global ones.
    """
    keeper = RandomState(**generators)
    state = keeper.state_dict()
    try:
        yield
    finally:
        keeper.load_state_dict(state)


def _cuda_states() -> list[torch.Tensor]:
    # `is_initialized` keeps a CPU run from creating a CUDA context.
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _set_cuda_states(states: list[torch.Tensor]) -> None:
    present = torch.cuda.device_count() if states else 0
    if present < len(states):
        message = (
            f"the state is of {len(states)} CUDA devices, but there are {present}: the random states of the others "
            "are not restored"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    for index, state in enumerate(states[:present]):
        torch.cuda.set_rng_state(state, index)


def _state_of(generator: AnyGenerator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return generator.bit_generator.state


def _set_state(name: str, generator: AnyGenerator, state: Any) -> None:
    if isinstance(generator, torch.Generator) != isinstance(state, torch.Tensor):
        kind = "torch" if isinstance(state, torch.Tensor) else "numpy"
        raise CheckpointError(
            f"expected the generator {name!r} to be of {kind}, as when its state was saved, got a {type(generator)}"
        )
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
        return
    kind = generator.bit_generator.state["bit_generator"]
    if state["bit_generator"] != kind:
        raise CheckpointError(f"the generator {name!r} is a {kind}, the stored state is a {state['bit_generator']}'s")
    generator.bit_generator.state = state
