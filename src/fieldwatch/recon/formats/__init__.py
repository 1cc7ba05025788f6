"""File formats shared by several packages, read and written without torch and without interpreting their contents."""

from fieldwatch.recon.formats.ply import PlyElement, PlyError, PlyProperty, PlyReader, Table, write_ply

__all__ = ["PlyElement", "PlyError", "PlyProperty", "PlyReader", "Table", "write_ply"]
