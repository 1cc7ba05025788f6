"""File formats shared by several packages, read and written without torch and without interpreting their contents."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.formats.ply import PlyElement, PlyError, PlyProperty, PlyReader, Table, write_ply

__all__ = ["PlyElement", "PlyError", "PlyProperty", "PlyReader", "Table", "write_ply"]

__getattr__, __dir__ = lazy_names(__name__)
