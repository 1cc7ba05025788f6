"""convert splats: Gaussians from one file format to another, and messages about files that cannot be read."""

from pathlib import Path

import pytest

from fieldwatch.recon.data import read_gaussians

FILES = Path(__file__).parents[1] / "fixtures" / "splat_files"


def test_the_ending_names_the_format_and_the_loss_is_reported(answer, tmp_path):
    got = answer("convert", "splats", FILES / "scene.sog", "-o", tmp_path / "a.compressed.ply")
    path = tmp_path / "a.compressed.ply"
    assert (got["format"], got["gaussians"], got["bytes"]) == ("compressed-ply", 240, path.stat().st_size)
    assert got["losses"]["rotations"]["unit"] == "degrees"
    assert got["losses"]["rotations"]["worst"] < 0.2
    assert len(read_gaussians(path)) == 240


def test_a_ply_loses_nothing_and_no_table_is_printed(fieldwatch, tmp_path):
    code, out, _ = fieldwatch("convert", "splats", FILES / "scene_1.ksplat", "-o", tmp_path / "a.ply")
    assert code == 0
    assert "worst" not in out
    assert str(tmp_path / "a.ply") in "".join(out.split())


def test_what_the_reader_corrected_is_printed(fieldwatch, tmp_path):
    code, out, _ = fieldwatch("convert", "splats", FILES / "scene_v3.spz", "-o", tmp_path / "a.splat")
    assert code == 0
    assert "12 of 240" in out
    assert "15 SH functions" in out


def test_a_format_can_be_named_where_the_ending_says_none(answer, tmp_path):
    got = answer("convert", "splats", FILES / "scene.ply", "-o", tmp_path / "a.bin", "--to", "spz")
    assert got["format"] == "spz"


@pytest.mark.parametrize(
    ("name", "data", "facts"),
    [
        ("a.glb", b"glTF\2\0\0\0", "glTF"),
        ("a.spz", b"\x1f\x8b\x08\0", "a.spz"),
        ("a.splat", bytes(33), "33 bytes"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\n1\n", "f_dc_0"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_written(refused, tmp_path, name, data, facts):
    (tmp_path / name).write_bytes(data)
    message = refused("convert", "splats", tmp_path / name, "-o", tmp_path / "new" / "out.ply")
    assert facts in message
    assert not (tmp_path / "new").exists()


def test_output_is_never_the_input_a_folder_or_of_an_unknown_format(refused, tmp_path):
    path = tmp_path / "a.ply"
    path.write_bytes((FILES / "scene.ply").read_bytes())
    assert "--to" in refused("convert", "splats", path, "-o", tmp_path / "a.ksplat")
    assert "folder" in refused("convert", "splats", path, "-o", tmp_path, "--to", "spz")
    assert str(path) in refused("convert", "splats", path, "-o", path)
    assert path.read_bytes() == (FILES / "scene.ply").read_bytes()
