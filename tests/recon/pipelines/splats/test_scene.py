"""Order of training photos: the same with decoding ahead, with photos in memory, and after a resume."""

from dataclasses import replace

import pytest
import torch

from fieldwatch import Shuffled
from fieldwatch.recon.pipelines.splats import Scene, SplatsConfig, prepare_scene


@pytest.fixture(scope="module")
def scene() -> Scene:
    return prepare_scene(SplatsConfig(views=6, held_out=3))


def crowded(scene: Scene) -> Scene:
    """The same photos with a memory budget that does not fit all of them."""
    return replace(scene, photos=scene.photos.having(memory_budget=3 * 128 * 128))


def next_names(scene: Scene, order: Shuffled, count: int) -> list[str]:
    with scene.batches(order) as next_batch:
        return [next_batch().views[0].name for _ in range(count)]


def test_photos_come_in_the_same_order_from_memory_and_decoded_ahead(scene: Scene) -> None:
    names = next_names(scene, Shuffled(4, 1, 7), 10)

    assert next_names(crowded(scene), Shuffled(4, 1, 7), 10) == names
    assert set(names) == {scene.photos.names[i] for i in scene.photos.train}


@pytest.mark.parametrize("tight", [False, True])
def test_the_order_stands_where_the_loop_is(scene: Scene, tight: bool) -> None:
    source = crowded(scene) if tight else scene
    order = Shuffled(4, 1, 7)
    other = Shuffled(4, 1, 7)
    next_names(source, order, 6)
    for _ in range(6):
        next(other)

    assert torch.equal(next(order), next(other))


@pytest.mark.parametrize("tight", [False, True])
def test_an_order_put_back_after_opening_is_followed(scene: Scene, tight: bool) -> None:
    source = crowded(scene) if tight else scene
    names = next_names(scene, Shuffled(4, 1, 7), 10)
    advanced = Shuffled(4, 1, 7)
    order = Shuffled(4, 1, 0)
    next_names(scene, advanced, 5)
    with source.batches(order) as next_batch:
        order.load_state_dict(advanced.state_dict())
        rest = [next_batch().views[0].name for _ in range(5)]

    assert rest == names[5:]


@pytest.mark.parametrize("tight", [False, True])
def test_processes_draw_their_part_of_the_same_batches(scene: Scene, tight: bool) -> None:
    source = crowded(scene) if tight else scene
    names = next_names(scene, Shuffled(4, 1, 7), 12)
    for first, last in ((0, 1), (1, 3)):
        order = Shuffled(4, 1, 7)
        with source.batches(order, 3, slice(first, last)) as next_batch:
            for number in range(4):
                batch = next_batch()
                all_names = tuple(names[3 * number : 3 * number + 3])
                assert batch.names == all_names
                assert batch.first == first
                assert tuple(view.name for view in batch.views) == all_names[first:last]
                assert batch.train_indices[first:last] == tuple(view.train_index for view in batch.views)


def test_a_shot_knows_its_place_among_the_training_photos(scene: Scene) -> None:
    assert [scene.photo_view(i).train_index for i in scene.photos.train] == [0, 1, 2, 3]
    assert scene.photo_view(scene.photos.test[0]).train_index is None
