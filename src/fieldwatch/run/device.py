"""Devices by name; choosing one needs torch, naming one does not."""

from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
"""Where to train; "auto" takes CUDA where there is any."""
