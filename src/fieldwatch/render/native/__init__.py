"""Native kernels: C behind a plain ABI, built once per machine with the system's compiler."""

from fieldwatch.render.native.build import NativeUnavailable
from fieldwatch.render.native.kernels import call, native_available, pointer

__all__ = ["NativeUnavailable", "call", "native_available", "pointer"]
