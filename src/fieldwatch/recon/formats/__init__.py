"""File formats that several rooms share: reading and writing them without torch, and without knowing what they hold."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.formats.ply import PlyElement, PlyError, PlyProperty, PlyReader, Table, write_ply

__all__ = ["PlyElement", "PlyError", "PlyProperty", "PlyReader", "Table", "write_ply"]

__getattr__, __dir__ = lazy_names(__name__)
