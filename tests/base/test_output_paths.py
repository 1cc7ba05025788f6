"""Output stays below the folder that the user chose, whatever names a dataset contains."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fieldwatch.base import InputError, LinkRefused, output_name, output_names, output_path, refuse_link
from fieldwatch.base.output_paths import LONGEST_NAME

HOSTILE = [
    ("/etc/passwd", "passwd"),
    ("../../photo.png", "photo.png"),
    ("images/../../photo.png", "photo.png"),
    ("..", "unnamed"),
    ("", "unnamed"),
    (".", "unnamed"),
    ("left/0001.png", "left_0001.png"),
    ("./left//0001.png", "left_0001.png"),
    (r"C:\Users\me\photo.png", "photo.png"),
    (r"left\0001.png", "left_0001.png"),
    (".bashrc", "_bashrc"),
    ("-rf", "_rf"),
    ("~", "_"),
    ("con.png", "_con.png"),
    ("a\0b\x1b[31m\n", "a_b_[31m_"),
    ("photo. ", "photo"),
    ("bär 1.png", "bär 1.png"),
]


@pytest.mark.parametrize(("name", "cleaned"), HOSTILE)
def test_a_name_becomes_one_safe_component(name, cleaned):
    assert output_name(name) == cleaned


@given(st.text() | st.text(alphabet="ab./\\ :~-_\0"))
@example("\ud800")
@example("é" * 400)
def test_any_text_becomes_a_valid_name_inside_the_folder(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("names")
    name = output_name(text)
    assert name == output_name(name)
    assert len(name.encode()) <= LONGEST_NAME
    (folder / name).write_bytes(b"")
    assert [path.name for path in folder.iterdir()] == [name]


@given(st.lists(st.text(alphabet="aA_b/.01", max_size=6), max_size=12))
def test_names_stay_distinct_if_case_is_ignored(names):
    made = output_names(names, ".png")
    assert len({name.casefold() for name in made}) == len(names)
    assert all(name.endswith(".png") for name in made)


def test_names_that_collide_get_their_index_and_others_are_unchanged():
    made = output_names(["a/b.jpg", "a_b.png", "c.png", "C.jpg"], ".png", drop_suffix=True)
    assert made == ["a_b_0.png", "a_b_1.png", "c_2.png", "C_3.png"]
    assert output_names(["0001.jpg", "0002.jpg"], ".png", drop_suffix=True) == ["0001.png", "0002.png"]


def test_long_names_with_a_common_prefix_stay_distinct():
    made = output_names(["x" * 400 + "1", "x" * 400 + "2"])
    assert made[0] != made[1]


def test_the_chosen_folder_may_be_a_link_but_nothing_below_it(tmp_path):
    disk = tmp_path / "disk"
    (disk / "products").mkdir(parents=True)
    run = tmp_path / "run"
    run.symlink_to(disk)
    assert output_path(run, "products", "mesh.ply") == run / "products" / "mesh.ply"
    (disk / "renders").symlink_to(tmp_path)
    with pytest.raises(LinkRefused, match="renders"):
        output_path(run, "renders", "0001.png")


@pytest.mark.parametrize("target", ["photo.png", "missing.png"])
def test_a_linked_file_is_refused_even_if_dangling(tmp_path, target):
    (tmp_path / "photo.png").write_bytes(b"mine")
    link = tmp_path / "products.png"
    link.symlink_to(tmp_path / target)
    with pytest.raises(InputError, match=r"products\.png is a symbolic"):
        refuse_link(link)
    with pytest.raises(InputError):
        output_path(tmp_path, "products.png")
