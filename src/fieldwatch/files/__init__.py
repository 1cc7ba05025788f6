"""Public: read files that users name, and write files that are whole or not there.

Everything here raises `InputError` (or a subclass) for input that cannot be used. It needs no torch.
"""

from fieldwatch.base import (
    ArrayFileError,
    UndecodableError,
    decoding,
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
    "output_names",
    "output_path",
    "read_npy",
    "read_npz",
    "read_npz_headers",
    "spreadsheet_cell",
    "whole_file",
    "write_file",
]
