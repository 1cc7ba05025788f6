"""Native kernels: C behind a plain ABI, built once per machine with the system's compiler."""

from fieldwatch.recon.render.native.build import NativeUnavailable
from fieldwatch.recon.render.native.kernels import call, native_available, pointer

__all__ = ["NativeUnavailable", "call", "native_available", "pointer"]
