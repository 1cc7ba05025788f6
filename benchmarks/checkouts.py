"""Another checkout to compare with: a src folder, or a commit of this repository."""

import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def source_of(other: str) -> Iterator[Path]:
    """Yield the src folder of another checkout.

    Args:
        other: path of the folder, or a commit, whose src folder is unpacked for the while.

    Raises:
        SystemExit: it is neither.
    """
    if Path(other).is_dir():
        yield Path(other).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="checkout-") as place:
        packed = Path(place) / "src.tar"
        command = ["git", "-C", str(ROOT), "archive", "--output", str(packed), other, "src"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"--source {other}: neither a folder nor a commit of {ROOT}: {done.stderr.strip()}")
        with tarfile.open(packed) as archive:
            archive.extractall(place, filter="data")
        yield Path(place) / "src"
