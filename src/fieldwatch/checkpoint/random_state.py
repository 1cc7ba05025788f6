"""Every source of randomness a run draws from, as one state."""

import random
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fieldwatch.checkpoint.incident import CheckpointError

AnyGenerator = torch.Generator | np.random.Generator


class RandomState:
    """The state of python's, numpy's and torch's global generators, of every CUDA device, and of named generators.

    CUDA is left alone while no CUDA work has been done.

    Args:
        generators: further generators by name, e.g. ``RandomState(rays=torch.Generator())``.
    """

    def __init__(self, **generators: AnyGenerator) -> None:
        self._generators = generators

    def state_dict(self) -> dict[str, Any]:
        """Return all states as plain values and arrays."""
        return {
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - the global generator is what is asked for
            "torch": torch.get_rng_state(),
            "cuda": _cuda_states(),
            "generators": {name: _state_of(generator) for name, generator in self._generators.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Set all states.

        Raises:
            CheckpointError: the named generators, or their kinds, are not those of the state.
        """
        stored = state_dict["generators"]
        if stored.keys() != self._generators.keys():
            names = f"{sorted(self._generators)}, the stored state has {sorted(stored)}"
            raise CheckpointError(f"RandomState has the generators {names}: name the same ones")
        for name, generator in self._generators.items():
            _set_state(name, generator, stored[name])
        random.setstate(state_dict["python"])
        np.random.set_state(state_dict["numpy"])  # noqa: NPY002 - the global generator is what is asked for
        torch.set_rng_state(state_dict["torch"])
        _set_cuda_states(state_dict["cuda"])


@contextmanager
def preserve_random_state(**generators: AnyGenerator) -> Generator[None]:
    """Leave all random states as they were, whatever is drawn inside: an evaluation cannot disturb training.

    Args:
        generators: further generators by name, besides the global ones.
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
        message = f"the state is of {len(states)} CUDA devices, here are {present}: the draws of the others are lost"
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
            f"the generator {name!r} was {kind}'s when the state was taken, now it is a {type(generator)}"
        )
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
        return
    own = generator.bit_generator.state["bit_generator"]
    if state["bit_generator"] != own:
        raise CheckpointError(f"the generator {name!r} is a {own}, the stored state is a {state['bit_generator']}'s")
    generator.bit_generator.state = state
