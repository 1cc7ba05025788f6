"""Facts about the machine that decide the last bits of results; stored in ``run.json``."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def device_name(tensors: Iterable[Tensor]) -> str:
    """Return the device of the first tensor: ``cpu``, or the name of its GPU; ``cpu`` if there is none."""
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def machine_facts(device: str) -> dict[str, Any]:
    """Return threads, instruction set and device.

    Args:
        device: name of the device of the model, see :func:`device_name`.
    """
    # Sums over several threads, or with wider vectors, are rounded differently.
    return {"threads": torch.get_num_threads(), "cpu": torch.backends.cpu.get_cpu_capability(), "device": device}
