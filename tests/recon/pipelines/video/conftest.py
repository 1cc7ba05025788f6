"""A textured plane that a window looks at, so that every motion is known to a fraction of a pixel."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

SIZE = 64


@pytest.fixture(scope="session")
def view() -> Callable[..., torch.Tensor]:
    """Return a function from the position of a window, in pixels, to what it shows: 3 channels, 64 x 64 pixels."""
    generator = np.random.default_rng(0)
    waves = []
    for octave in range(4):
        for _ in range(5):
            angle, phase, *tint = generator.uniform(0, 2 * math.pi, 5)
            frequency = 2 * math.pi * 1.6 * 2**octave / SIZE
            color = 0.62**octave * torch.tensor(np.cos(tint), dtype=torch.float32)
            waves.append((frequency * math.cos(angle), frequency * math.sin(angle), phase, color))

    def draw(x: float, y: float = 0.0) -> torch.Tensor:
        rows = torch.arange(SIZE, dtype=torch.float32)[:, None] + y
        columns = torch.arange(SIZE, dtype=torch.float32) + x
        total = sum(torch.cos(a * columns + b * rows + phase) * color[:, None, None] for a, b, phase, color in waves)
        return torch.sigmoid(torch.as_tensor(total))

    return draw
