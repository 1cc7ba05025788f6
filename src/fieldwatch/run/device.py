"""Devices by name; choosing one needs torch, naming one does not."""

from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
"""Device to train on; "auto" uses CUDA if available."""
