"""Health rules own their thresholds, and a reader can open every source."""

import dataclasses
import math
import re
import subprocess
import sys
import typing

import pytest

from fieldwatch.health import GENERAL, thresholds_of
from fieldwatch.health.rules import RULES
from fieldwatch.recon.pipelines.normals import NORMALS_RULES
from fieldwatch.recon.pipelines.splats import SPLATS_RULES
from fieldwatch.recon.pipelines.video import VIDEO_RULES

SETS = {"general": GENERAL, "splats": SPLATS_RULES, "normals": NORMALS_RULES, "video": VIDEO_RULES}
USED = {type(rule) for rules in SETS.values() for rule in rules}
CLASSES = pytest.mark.parametrize(
    "rule", sorted(USED | set(RULES), key=lambda rule: rule.__name__), ids=lambda rule: rule.__name__
)


def optional_numbers(rule):
    """Fields that are no thresholds: facts of a run, which have no default."""
    return {field.name for field in dataclasses.fields(rule) if field.default is None}


@CLASSES
def test_every_number_of_a_rule_is_a_declared_threshold_of_the_annotated_type(rule):
    types = typing.get_type_hints(rule)
    numbers = {name for name, hint in types.items() if hint in (int, float)} - optional_numbers(rule)
    declared = thresholds_of(rule)
    assert numbers == declared.keys()
    assert {name: type(about.value) for name, about in declared.items()} == {name: types[name] for name in declared}
    assert all(math.isfinite(about.value) for about in declared.values())


@CLASSES
def test_every_source_can_be_opened(rule, root):
    for about in thresholds_of(rule).values():
        files = re.findall(r"(?:benchmarks|tests)/[\w/]+\.py", about.source)
        assert about.source.startswith(("https://", "measured by benchmarks/", "chosen by the authors"))
        assert [file for file in files if not (root / file).is_file()] == []


@CLASSES
def test_every_rule_is_in_some_set(rule):
    """A variant of a rule counts for it."""
    assert [used for used in USED if issubclass(used, rule)]


@pytest.mark.parametrize("name", ["splats", "normals", "video"])
def test_the_rules_of_a_pipeline_are_found_without_torch(name):
    program = (
        f"import sys; from fieldwatch.recon.pipelines.{name} import {name.upper()}_RULES; print('torch' in sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (loaded.stdout.strip(), loaded.stderr) == ("False", "")


def test_the_toolkit_names_no_rule_of_a_pipeline():
    assert [rule for rule in RULES if not rule.__module__.startswith("fieldwatch.health.rules.")] == []
    assert {type(rule) for rule in GENERAL} <= set(RULES)
