"""File formats that several rooms share: reading and writing them without torch, and without knowing what they hold."""

from fieldwatch.recon.formats.ply import PlyElement, PlyError, PlyProperty, PlyReader, Table, write_ply

__all__ = ["PlyElement", "PlyError", "PlyProperty", "PlyReader", "Table", "write_ply"]
