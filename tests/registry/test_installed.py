"""Pipelines are found through the entry points of installed packages."""

import subprocess
import sys
import tomllib
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from fieldwatch.pipeline import Pipeline
from fieldwatch.registry import GROUP, PipelineError, UnknownPipeline, find_pipeline, installed, installed_pipelines

PLAIN = Pipeline(name="plain", about="a test", config="a.b:C", prepare="a.b:c")


@pytest.fixture
def offers(monkeypatch):
    """Replace the installed entry points by given ones."""

    def offer(**values):
        found = [EntryPoint(name, value, GROUP) for name, some in values.items() for value in some.split()]
        monkeypatch.setattr(installed, "entry_points", lambda **_: found)
        installed._entry_points_by_name.cache_clear()
        find_pipeline.cache_clear()

    yield offer
    monkeypatch.undo()
    installed._entry_points_by_name.cache_clear()
    find_pipeline.cache_clear()


def test_the_installed_entry_points_are_those_of_pyproject(request):
    project = tomllib.loads((request.config.rootpath / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"][GROUP]
    hint = "the installed package is older than its source: pip install -e ."
    assert {
        offer.name: offer.value for offers in installed._entry_points_by_name().values() for offer in offers
    } == declared, hint


def test_every_reference_of_the_builtin_pipelines_can_be_imported():
    for pipeline in installed_pipelines():
        for each in fields(Pipeline):
            if each.type in ("Reference", str) and ":" in getattr(pipeline, each.name).partition("\n")[0]:
                reference = getattr(pipeline, each.name)
                if reference.startswith("fieldwatch."):
                    assert pipeline.load(each.name) is not None, reference
        assert is_dataclass(pipeline.load("config"))
        assert "default" in pipeline.load_presets()


def test_finding_the_builtin_pipelines_loads_neither_torch_nor_their_code():
    program = (
        "import sys; from fieldwatch.registry import installed_pipelines; print(len(installed_pipelines())); "
        "heavy = ('torch', 'tyro', 'fieldwatch.recon.pipelines', 'fieldwatch.cli'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout == "4\n[]\n"


def test_an_unknown_pipeline_is_refused(offers):
    offers(plain=f"{__name__}:PLAIN")
    with pytest.raises(UnknownPipeline, match=r"'hair'.*plain"):
        find_pipeline("hair")


@pytest.mark.parametrize(
    ("value", "pattern"),
    [("no_such_module:X", "no_such_module"), ("fieldwatch.registry:GROUP", "fieldwatch.pipelines")],
)
def test_an_invalid_entry_point_is_named_with_its_package(offers, value, pattern):
    offers(plain=value)
    with pytest.raises(PipelineError, match=pattern):
        find_pipeline("plain")
    working, broken = installed.working_pipelines()
    assert (working, list(broken)) == ((), ["plain"])


def test_two_packages_with_the_same_pipeline_are_named(offers):
    offers(plain="one:A two:B")
    with pytest.raises(PipelineError, match="one:A, two:B"):
        find_pipeline("plain")


@pytest.mark.parametrize("wrong", [{"name": "Two words"}, {"config": "no colon"}, {"prepare": ":x"}])
def test_a_malformed_name_or_reference_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong.values()))):
        Pipeline(**{"name": "plain", "about": "a test", "config": "a:B", "prepare": "a:b", **wrong})


def test_entry_points_of_the_backport_are_converted(offers, monkeypatch):
    offers()
    foreign = SimpleNamespace(name="plain", value="a.b:PLAIN", group=GROUP)
    monkeypatch.setattr(installed, "entry_points", lambda **_: [foreign])
    assert installed._entry_points_by_name() == {"plain": [EntryPoint("plain", "a.b:PLAIN", GROUP)]}
