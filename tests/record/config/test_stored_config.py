"""Configs survive the round trip through plain JSON; unknown keys and choices are rejected by name."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest

from fieldwatch.record import Manifest, NotARun
from fieldwatch.record.config import config_differences, config_from_plain, config_of_run, plain_values, preset_of_run
from fieldwatch.record.config.stored import preset_values


@dataclass(frozen=True, kw_only=True)
class Inner:
    kind: Literal["one", "two"] = "one"
    cap: int | None = None
    sides: tuple[float, float] = (1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class Outer:
    data: Path | None = None
    folders: tuple[Path, ...] = ()
    name: str = "a"
    at: tuple[int, ...] = (1, 2)
    listed: list[int] = field(default_factory=list)
    inner: Inner = field(default_factory=Inner)
    other: Inner | None = None
    either: Literal["x"] | None = None
    loose: dict[str, int] = field(default_factory=dict)

    def __post_init__(self):
        if self.name == "":
            raise ValueError("name must have at least one letter, got no letters")


FULL = Outer(
    data=Path("/a/b"),
    folders=(Path("c"), Path("d e")),
    name="/looks/like/a/path",
    at=(),
    listed=[3],
    inner=Inner(kind="two", cap=5, sides=(0.1, 1e-9)),
    other=Inner(),
    either="x",
    loose={"k": 1},
)


@pytest.mark.parametrize("config", [Outer(), FULL, replace(FULL, data=None, other=None, either=None)])
def test_what_was_written_comes_back(config):
    back = config_from_plain(Outer, plain_values(config))
    assert back == config
    assert type(back.at) is tuple
    assert all(isinstance(one, Path) for one in back.folders)


def test_missing_fields_take_their_defaults():
    assert config_from_plain(Outer, {"inner": {"cap": 3}}) == Outer(inner=Inner(cap=3))


@pytest.mark.parametrize("values", [{"gone": 1}, {"inner": {"gone": 1}}])
def test_an_unknown_key_is_named(values):
    with pytest.raises(ValueError, match=r"keys gone that (Outer|Inner)"):
        config_from_plain(Outer, values)


def test_an_unknown_choice_is_named():
    with pytest.raises(ValueError, match="kind = 'three', expected one of 'one', 'two'"):
        config_from_plain(Outer, {"inner": {"kind": "three"}})


def test_what_the_dataclass_refuses_is_refused():
    with pytest.raises(ValueError, match="no letters"):
        config_from_plain(Outer, {"name": ""})


def test_the_preset_is_the_config_with_its_differences_undone():
    preset = Outer(data=Path("p"), inner=Inner(cap=2), at=(9,))
    manifest = Manifest(
        config=plain_values(FULL), preset_difference=config_differences(plain_values(preset), plain_values(FULL))
    )
    before = plain_values(FULL)
    undone = preset_values(manifest)
    assert config_from_plain(Outer, undone).inner == preset.inner
    assert config_from_plain(Outer, {k: v for k, v in undone.items() if k != "other"}).at == (9,)
    assert manifest.config == before


def test_config_and_preset_of_a_run_come_back(tmp_path):
    preset = replace(FULL, name="preset", inner=Inner(cap=3), data=None)
    difference = config_differences(plain_values(preset), plain_values(FULL))
    Manifest(config=plain_values(FULL), preset_difference=difference, about={"pipeline": "lines"}).write(tmp_path)
    assert config_of_run(tmp_path, "lines", Outer) == FULL
    assert preset_of_run(tmp_path, "lines", Outer) == preset


@pytest.mark.usefixtures("unchecked")  # the damage is of a type that no annotation allows
@pytest.mark.parametrize("open_", [config_of_run, preset_of_run])
@pytest.mark.parametrize(
    ("about", "config", "message"),
    [
        ({"pipeline": "dots"}, {}, "holds a run of dots: this command opens lines runs"),
        ({}, {}, "a run of a loop of your own"),
        ([1], {}, "a run of a loop of your own"),
        (
            {"pipeline": "lines"},
            {"of_the_future": 1},
            "does not contain a valid lines config .*of_the_future.*restore the file",
        ),
        ({"pipeline": "lines"}, [1], "does not contain a valid lines config"),
    ],
)
def test_runs_of_others_and_damaged_ones_are_refused(tmp_path, open_, about, config, message):
    Manifest(config={}).write(tmp_path)
    stored = json.loads((tmp_path / "run.json").read_text())
    del stored["sha256"]
    (tmp_path / "run.json").write_text(json.dumps(stored | {"about": about, "config": config}))
    with pytest.raises(NotARun, match=message):
        open_(tmp_path, "lines", Outer)
