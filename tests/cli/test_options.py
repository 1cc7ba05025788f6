"""Flags that pipelines add to a shared command: where two have one, the owner of the run has it."""

from dataclasses import dataclass

import pytest

from fieldwatch.base import InputError
from fieldwatch.cli import options
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.options import flags_with_options, options_of
from fieldwatch.pipeline import Pipeline
from fieldwatch.record import Manifest


@dataclass(frozen=True, kw_only=True)
class Base:
    """Do something."""

    run: str = ""


@dataclass(frozen=True, kw_only=True)
class First:
    """Flags."""

    size: int = 1


@dataclass(frozen=True, kw_only=True)
class Second:
    """Flags."""

    size: str = "small"
    other: bool = False


PIPELINES = {
    name: Pipeline(name=name, about="a test", config="a:B", prepare="a:b", rank_options=f"{__name__}:{kind}")
    for name, kind in (("first", "First"), ("second", "Second"))
}


def read(words):
    return read_flags(flags_with_options(Base, "rank_options", words), prog="test", arguments=words)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(Pipeline, "load", lambda self, _: {"first": First, "second": Second}[self.name])
    monkeypatch.setattr(options, "working_pipelines", lambda: (tuple(PIPELINES.values()), {}))
    monkeypatch.setattr(options, "pipeline_names", lambda: tuple(PIPELINES))
    monkeypatch.setattr(options, "find_pipeline", PIPELINES.__getitem__)


@pytest.fixture
def parse(tmp_path):
    def parsed(pipeline, *words):
        Manifest(config={}, about={"pipeline": pipeline}).write(tmp_path)
        return read(["--run", str(tmp_path), *words])

    return parsed


def test_the_owner_of_the_run_has_a_shared_flag(parse):
    assert options_of(parse("first", "--size", "3"), PIPELINES["first"]) == First(size=3)
    assert options_of(parse("second", "--size", "big", "--other"), PIPELINES["second"]) == Second(
        size="big", other=True
    )


def test_a_flag_of_another_pipeline_is_refused_with_its_name(monkeypatch, parse):
    monkeypatch.setattr(
        Pipeline, "load", lambda self, _: {"first": First, "second": dataclass_without_size()}[self.name]
    )
    chosen = parse("first", "--other")
    with pytest.raises(InputError, match=r"--other True.*second.*first"):
        options_of(chosen, PIPELINES["first"])


def dataclass_without_size():
    @dataclass(frozen=True, kw_only=True)
    class Third:
        """Flags."""

        other: bool = False

    return Third


def test_without_a_run_all_flags_are_there_once():
    chosen = read(["--size", "2"])
    assert options_of(chosen, PIPELINES["first"]) == First(size=2)
