"""The pipeline of the run in a folder."""

import pytest

from fieldwatch.base import InputError
from fieldwatch.cli.rules import rules_of_run
from fieldwatch.health import GENERAL
from fieldwatch.recon.pipelines.splats import SPLATS_RULES
from fieldwatch.record import Manifest, NotARun
from fieldwatch.registry import pipeline_name_of, pipeline_of, population_of


@pytest.fixture
def run_of(tmp_path):
    """Return a folder with a run of a pipeline."""

    def make(**about):
        Manifest(config={}, about=about).write(tmp_path)
        return tmp_path

    return make


def test_a_run_belongs_to_the_pipeline_it_names(run_of):
    folder = run_of(pipeline="splats")
    assert pipeline_name_of(folder) == pipeline_of(folder).name == "splats"
    assert pipeline_of(folder, "rank").rank
    assert population_of(folder) == "Gaussians"
    assert rules_of_run(folder) == SPLATS_RULES


@pytest.mark.parametrize("about", [{}, {"pipeline": None}, {"pipeline": ["video"]}])
def test_a_user_written_loop_belongs_to_no_pipeline(run_of, about):
    folder = run_of(**about)
    assert pipeline_name_of(folder) is None
    assert rules_of_run(folder) == GENERAL
    assert population_of(folder) == "primitives"
    with pytest.raises(InputError, match="own"):
        pipeline_of(folder)


def test_an_uninstalled_pipeline_is_named_with_the_installed_ones(run_of):
    folder = run_of(pipeline="hair")
    assert rules_of_run(folder) == GENERAL
    with pytest.raises(InputError, match=r"hair.*splats"):
        pipeline_of(folder)


def test_a_pipeline_without_the_capability_is_refused_with_those_that_have_it(run_of):
    with pytest.raises(InputError, match=r"run of video.*rank: normals, splats"):
        pipeline_of(run_of(pipeline="video"), "rank")


def test_a_folder_without_a_run_is_refused(tmp_path):
    for asked in (pipeline_name_of, pipeline_of, population_of, rules_of_run):
        with pytest.raises(NotARun):
            asked(tmp_path)
