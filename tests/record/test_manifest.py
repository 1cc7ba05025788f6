"""run.json is read if an older or a newer version wrote it, and refused in one line if it is none."""

import hashlib

import orjson
import pytest

from fieldwatch.record import Manifest, Metric, NotARun, read_manifest

PSNR = Metric(name="Test/psnr", unit="dB", meaning="quality of the test views", better="higher")


def sealed(fields):
    """Return the text of a run.json with its hash."""
    text = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    return orjson.dumps(fields | {"sha256": hashlib.sha256(text).hexdigest()})


def test_fields_of_a_newer_version_are_left_out(tmp_path):
    manifest = Manifest(config={"lr": 0.1}, windows={"mask": (0, 9)}, phases=(("fine", 5, None),), metrics=(PSNR,))
    newer = orjson.loads(manifest.text())
    del newer["sha256"]
    newer["metrics"][0]["noise_floor"] = 0.02
    newer["energy"] = {"joules": 12.5}
    (tmp_path / "run.json").write_bytes(sealed(newer))
    assert read_manifest(tmp_path) == manifest


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"[]", "list"),
        (b"{", "unexpected end"),
        (b'{"config": {}, "phases": [], "segments": []}', "windows"),
        (b'{"config": {}, "windows": [], "phases": [], "segments": []}', "items"),
        (b'{"config": {}, "windows": {}, "phases": [], "segments": [], "metrics": [{"name": "a"}]}', "unit"),
    ],
)
def test_a_file_of_another_program_is_refused_and_named(tmp_path, text, word):
    (tmp_path / "run.json").write_bytes(text)
    with pytest.raises(NotARun, match=word) as refused:
        read_manifest(tmp_path)
    assert str(tmp_path / "run.json") in str(refused.value)


def test_a_checkpoint_whose_copy_cannot_be_read_is_passed_over(tmp_path):
    checkpoints = {"step_000010": Manifest(config={"lr": 0.1}).text(), "step_000020": '{"another": "format"}'}
    for name, text in checkpoints.items():
        folder = tmp_path / "checkpoints" / name
        folder.mkdir(parents=True)
        manifest = orjson.dumps({"run": text})
        (folder / "manifest.json").write_bytes(manifest)
        (folder / "manifest.sha256").write_text(hashlib.sha256(manifest).hexdigest())
    assert read_manifest(tmp_path).config == {"lr": 0.1}
