"""Public API for safe file access: read untrusted input files, write files atomically, and format their sizes.

All functions raise `InputError` (or a subclass) for unusable input. Importing this package does not load torch.
"""

from fieldwatch.base import (
    ArrayFileError,
    UndecodableError,
    decoding,
    nbytes,
    output_names,
    output_path,
    read_npy,
    read_npz,
    read_npz_headers,
    spreadsheet_cell,
    whole_file,
    write_file,
)

__all__ = [
    "ArrayFileError",
    "UndecodableError",
    "decoding",
    "nbytes",
    "output_names",
    "output_path",
    "read_npy",
    "read_npz",
    "read_npz_headers",
    "spreadsheet_cell",
    "whole_file",
    "write_file",
]
