"""Native kernels in C, built once per machine with the system compiler and called through ctypes."""

from fieldwatch.recon.render.native.build import NativeUnavailable
from fieldwatch.recon.render.native.kernels import call, native_available, native_note, pointer

__all__ = ["NativeUnavailable", "call", "native_available", "native_note", "pointer"]
