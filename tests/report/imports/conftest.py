"""Recorded runs of other tools; tests/fixtures/imports/make.py made them with the real libraries."""

import sqlite3
from pathlib import Path

import pytest


@pytest.fixture
def recorded() -> Path:
    """The folder of recorded runs: W&B, and MLflow's file store."""
    return Path(__file__).parents[2] / "fixtures" / "imports"


@pytest.fixture
def database(recorded, tmp_path) -> Path:
    """The recorded MLflow database; it is kept as text."""
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as made:
        made.executescript(f"BEGIN;\n{(recorded / 'mlflow.sql').read_text()}COMMIT;")
    made.close()
    return path
