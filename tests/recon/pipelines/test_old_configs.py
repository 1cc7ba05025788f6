"""Configs that earlier versions stored are read, and their runs may be resumed."""

import json
from pathlib import Path

import pytest

from fieldwatch.record.config import as_stored_now, config_differences, config_from_plain, plain_values
from fieldwatch.registry import find_pipeline

STORED = sorted((Path(__file__).parents[2] / "fixtures" / "old_configs").glob("*/*.json"))


def test_configs_of_all_pipelines_are_stored():
    assert {path.stem for path in STORED} == {"normals", "splats", "refined", "video"}


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_stored_config_is_the_config_of_a_resumed_run(path):
    kind = find_pipeline(path.stem).load("config")
    stored = json.loads(path.read_text("utf-8"))
    config = config_from_plain(kind, stored)
    assert config_differences(as_stored_now(kind, stored), plain_values(config)) == {}
