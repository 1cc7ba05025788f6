"""SQLite databases of other tools, opened without writing anything."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fieldwatch.report.imports.source import BadSource

_SIGNATURE = b"SQLite format 3\0"


def is_database(path: Path) -> bool:
    """Return whether a file is an SQLite database."""
    with path.open("rb") as file:
        return file.read(len(_SIGNATURE)) == _SIGNATURE


@contextmanager
def opened(path: Path) -> Generator[sqlite3.Connection]:
    """Open a database for reading; nothing is written, neither to it nor next to it.

    Raises:
        BadSource: the database is damaged.
    """
    # Without a log of pending writes, the file is complete; SQLite would create its lock files next to it otherwise.
    pending = path.with_name(f"{path.name}-wal").exists()
    address = f"{path.absolute().as_uri()}?mode=ro{'' if pending else '&immutable=1'}"
    try:
        connection = sqlite3.connect(address, uri=True)
        try:
            yield connection
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise BadSource(f"{path}: {error}: expected an intact SQLite database; use an intact copy") from error


def tables_of(path: Path) -> set[str]:
    """Return the names of the tables of a database.

    Raises:
        BadSource: the database is damaged.
    """
    with opened(path) as database:
        return {str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
