"""Reader for the runs of a Trackio project (``PROJECT.db``), read without the trackio package."""

import json
import math
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from fieldwatch.report.imports.source import BadSource, SourcePicture, SourceRun, Values
from fieldwatch.report.imports.sqlite import opened

TABLES = {"metrics", "configs", "system_metrics"}
"""Tables by which a database of Trackio is known."""
_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def trackio_runs(path: Path) -> list[tuple[str, str]]:
    """Return ID and name of each run, oldest first.

    Raises:
        BadSource: the database is damaged.
    """
    query = "SELECT run_id, run_name FROM metrics GROUP BY run_id ORDER BY MIN(timestamp)"
    with opened(path) as database:
        return [(str(identity), str(name)) for identity, name in database.execute(query)]


def read_trackio(path: Path, identity: str, name: str) -> SourceRun:
    """Read the metrics and the config of a run.

    Args:
        path: the database.
        identity: ID of the run.
        name: its name.

    Raises:
        BadSource: the database is damaged.
    """
    values = Values()
    skipped = Counter[str]()
    pictures: list[tuple[str, int, Path]] = []
    with opened(path) as database:
        query = "SELECT step, timestamp, metrics FROM metrics WHERE run_id = ? ORDER BY id"
        rows = database.execute(query, (identity,)).fetchall()
        configs = database.execute("SELECT config FROM configs WHERE run_id = ?", (identity,)).fetchall()
    for step, moment, text in rows:
        for key, value in _mapping(path, text).items():
            number = _NAMES.get(value, value) if isinstance(value, str) else value
            parts = _mapping(path, json.dumps(value)) if isinstance(value, dict) else {}
            if isinstance(number, int | float):
                values.add(key, int(step), _seconds(str(moment)), float(number))
            elif parts.get("_type") == "trackio.image":
                pictures.append((key, int(step), path.parent / "media" / str(parts.get("file_path"))))
            else:
                skipped[type(cast("object", value)).__name__] += 1
    config = {key: value for (text,) in configs for key, value in _mapping(path, text).items() if key[:1] != "_"}
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(skipped.items()))
    return SourceRun(
        tool="Trackio",
        name=name,
        place=path,
        series=values.series(),
        config=config,
        pictures=lambda: [
            SourcePicture(name=key, step=step, content=_content(path.parent / "media", picture))
            for key, step, picture in sorted(pictures, key=lambda found: found[1])
        ],
        began=values.began(),
        notes=(f"skipped, not numbers: {kinds}",) if kinds else (),
    )


def _content(folder: Path, picture: Path) -> bytes:
    """Return the content of a picture; empty if it is missing, or if the database of a stranger names another file."""
    inside = picture.resolve().is_relative_to(folder.resolve())
    return picture.read_bytes() if inside and picture.is_file() else b""


def _mapping(path: Path, text: str | bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise BadSource(f"{path}: a row is not a JSON object ({error}): use an intact copy of the database") from error


def _seconds(moment: str) -> float:
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return math.nan
