"""Whose run a folder holds."""

import pytest

from fieldwatch.cli.ending import BadInput
from fieldwatch.cli.fronts import FRONTS
from fieldwatch.cli.pipeline import RULES, by_pipeline, pipeline_of, rules_of
from fieldwatch.health import GENERAL, SPLATS, VIDEO
from fieldwatch.record import Manifest, NotARun

THINGS = {"video": 1, "splats": 2}


@pytest.fixture
def run_of(tmp_path):
    """A folder with a run of a pipeline."""

    def make(**about):
        Manifest(config={}, about=about).write(tmp_path)
        return tmp_path

    return make


def test_a_run_belongs_to_the_pipeline_it_names(run_of):
    folder = run_of(pipeline="splats")
    assert pipeline_of(folder) == "splats"
    assert by_pipeline(folder, THINGS) == 2


@pytest.mark.parametrize("about", [{}, {"pipeline": None}, {"pipeline": ["video"]}])
def test_a_loop_of_ones_own_belongs_to_none(run_of, about):
    folder = run_of(**about)
    assert pipeline_of(folder) is None
    with pytest.raises(BadInput, match="a run of a loop of your own: this command opens video and splats runs"):
        by_pipeline(folder, THINGS)


def test_another_pipeline_is_named(run_of):
    with pytest.raises(BadInput, match="holds a run of hair: this command opens video and splats runs"):
        by_pipeline(run_of(pipeline="hair"), THINGS)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(NotARun):
        pipeline_of(tmp_path)
    with pytest.raises(BadInput, match="holds no run"):
        by_pipeline(tmp_path, THINGS)


def test_every_pipeline_has_its_rules_and_all_others_the_general_ones():
    assert RULES.keys() == FRONTS.keys()
    assert (rules_of("video"), rules_of("splats")) == (VIDEO, SPLATS)
    assert rules_of(None) == rules_of("hair") == GENERAL
