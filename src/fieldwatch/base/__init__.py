"""Utilities shared by all packages: input errors, output paths, reading and writing of files, full disks, texts."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.base import protobuf
    from fieldwatch.base.arrays import ArrayFileError, ArrayHeader, read_npy, read_npz, read_npz_headers
    from fieldwatch.base.child_process import end_with_parent
    from fieldwatch.base.errors import ExistingPathError, InputError, MissingPackageError, MissingPathError
    from fieldwatch.base.extras import missing_package
    from fieldwatch.base.files import (
        open_for_append,
        open_for_update,
        open_new,
        sync_folder,
        whole_file,
        whole_folder,
        write_file,
        write_synced,
    )
    from fieldwatch.base.image_errors import UndecodableError, decoding
    from fieldwatch.base.output_paths import (
        LONGEST_NAME,
        LinkRefused,
        output_name,
        output_names,
        output_path,
        refuse_link,
    )
    from fieldwatch.base.space import TRANSIENT_ERRNOS, DiskFullError, disk_full, lacks_space
    from fieldwatch.base.text_format import duration, mebibytes, moment, nbytes, number, percent
from fieldwatch.base.printing import printable, spreadsheet_cell

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
    "duration",
    "end_with_parent",
    "lacks_space",
    "mebibytes",
    "missing_package",
    "moment",
    "nbytes",
    "number",
    "open_for_append",
    "open_for_update",
    "open_new",
    "output_name",
    "output_names",
    "output_path",
    "percent",
    "printable",
    "protobuf",
    "read_npy",
    "read_npz",
    "read_npz_headers",
    "refuse_link",
    "spreadsheet_cell",
    "sync_folder",
    "whole_file",
    "whole_folder",
    "write_file",
    "write_synced",
]

__getattr__, __dir__ = lazy_names(__name__)
