"""A config that was written as plain JSON comes back as it was; what no version knows is refused by name."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest

from fieldwatch.record import Manifest, config_differences, config_from_plain, plain, preset_values


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
            raise ValueError("a name of no letters was given, wanted is one letter or more")


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
    back = config_from_plain(Outer, plain(config))
    assert back == config
    assert type(back.at) is tuple
    assert all(isinstance(one, Path) for one in back.folders)


def test_missing_fields_take_their_defaults():
    assert config_from_plain(Outer, {"inner": {"cap": 3}}) == Outer(inner=Inner(cap=3))


@pytest.mark.parametrize("values", [{"gone": 1}, {"inner": {"gone": 1}}])
def test_an_unknown_key_is_named(values):
    with pytest.raises(ValueError, match=r"keys gone .* use the version that made it"):
        config_from_plain(Outer, values)


def test_an_unknown_choice_is_named():
    with pytest.raises(ValueError, match="kind = 'three', known are 'one', 'two'"):
        config_from_plain(Outer, {"inner": {"kind": "three"}})


def test_what_the_dataclass_refuses_is_refused():
    with pytest.raises(ValueError, match="a name of no letters"):
        config_from_plain(Outer, {"name": ""})


def test_the_preset_is_the_config_with_its_differences_undone():
    preset = Outer(data=Path("p"), inner=Inner(cap=2), at=(9,))
    manifest = Manifest(config=plain(FULL), preset_difference=config_differences(plain(preset), plain(FULL)))
    before = plain(FULL)
    undone = preset_values(manifest)
    assert config_from_plain(Outer, undone).inner == preset.inner
    assert config_from_plain(Outer, {k: v for k, v in undone.items() if k != "other"}).at == (9,)
    assert manifest.config == before
