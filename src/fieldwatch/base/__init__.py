"""Utilities shared by all packages: input errors, output paths, safe reading and writing of files, full disks."""

from fieldwatch.base.arrays import ArrayFileError, ArrayHeader, read_npy, read_npz, read_npz_headers
from fieldwatch.base.decoding import UndecodableError, decoding
from fieldwatch.base.errors import ExistingPathError, InputError, MissingPackageError, MissingPathError
from fieldwatch.base.files import (
    open_for_append,
    open_for_update,
    open_new,
    sync_folder,
    whole_file,
    write_file,
    write_synced,
)
from fieldwatch.base.output_paths import LONGEST_NAME, LinkRefused, output_name, output_names, output_path, refuse_link
from fieldwatch.base.printable import printable, spreadsheet_cell
from fieldwatch.base.space import TRANSIENT_ERRNOS, DiskFullError, disk_full, lacks_space

__all__ = [
    "LONGEST_NAME",
    "TRANSIENT_ERRNOS",
    "ArrayFileError",
    "ArrayHeader",
    "DiskFullError",
    "ExistingPathError",
    "InputError",
    "LinkRefused",
    "MissingPackageError",
    "MissingPathError",
    "UndecodableError",
    "decoding",
    "disk_full",
    "lacks_space",
    "open_for_append",
    "open_for_update",
    "open_new",
    "output_name",
    "output_names",
    "output_path",
    "printable",
    "read_npy",
    "read_npz",
    "read_npz_headers",
    "refuse_link",
    "spreadsheet_cell",
    "sync_folder",
    "whole_file",
    "write_file",
    "write_synced",
]
