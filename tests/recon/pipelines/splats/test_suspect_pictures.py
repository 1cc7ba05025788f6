"""The picture of a suspected photo: photo, rendering, error and the photos of its neighbors."""

from dataclasses import replace

from fieldwatch import read_history
from fieldwatch.recon.pipelines.splats.pictures import as_picture, strip
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.suspect_pictures import READABLE, record_suspects, suspect_picture


def test_the_photo_that_a_rule_names_is_pictured(run_with_losses, tiny_scene, tiny_model, tmp_path):
    def record(run):
        run.flush()
        record_suspects(run, read_history(run.folder), tiny_model, tiny_scene)

    names = [tiny_scene.photos.names[i] for i in tiny_scene.photos.train]
    _, images = run_with_losses(tmp_path, names, {names[1]}, record)
    ((tag, (position, image)),) = images.items()
    assert (tag, position) == ("Suspects/photo", tiny_scene.plan.total)
    expected = suspect_picture(tiny_model, tiny_scene, tiny_scene.photos.train[1])
    assert image.size == expected.shape[1::-1]


def test_a_photo_stands_beside_its_rendering_its_error_and_two_others(tiny_scene, tiny_model):
    picture = suspect_picture(tiny_model, tiny_scene, 1)
    # Photos of 40 pixels are enlarged, so that their labels can be read.
    panel = picture[18 : 18 + READABLE, :READABLE]
    assert picture.shape[1] == strip([panel] * 5, "abcde").shape[1]
    assert (panel[::4, ::4] == as_picture(tiny_scene.photo_view(1).image)).all()


def test_a_neighbor_of_another_size_is_fitted(tiny_scene, tiny_model, monkeypatch):
    whole = Scene.photo_view

    def cut(self, index):
        view = whole(self, index)
        return view if index == 1 else replace(view, image=view.image[:20], mask=None, alpha=None)

    monkeypatch.setattr(Scene, "photo_view", cut)
    picture = suspect_picture(tiny_model, tiny_scene, 1)
    assert picture.shape[1] > 5 * READABLE
