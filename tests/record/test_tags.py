import pytest

from fieldwatch.record import tags


@pytest.mark.parametrize(
    ("family", "part", "tag"),
    [
        (tags.COMPONENT, "mask", "Loss/component_mask"),
        (tags.GROUP_NORM, "sdf", "Gradients/sdf_norm"),
        (tags.PARAMETER_MEAN, "a_mean", "Parameters/a_mean_mean"),
        (tags.SPAN, "render", "Time/render"),
    ],
)
def test_a_tag_is_taken_apart_as_it_was_built(family, part, tag):
    assert family.tag(part) == tag
    assert family.part(tag) == part


@pytest.mark.parametrize(
    ("family", "tag"),
    [
        (tags.COMPONENT, "Loss/weight_mask"),
        (tags.COMPONENT, "Loss/component_"),
        (tags.GROUP_NORM, "Gradients/total_norm"),
        (tags.GROUP_NORM, "Gradients/_norm"),
        (tags.GROUP_NORM, "Gradients/max"),
        (tags.SPAN, "Times/render"),
    ],
)
def test_a_tag_of_another_family_has_no_part(family, tag):
    assert family.part(tag) is None


def test_the_tags_of_a_family_are_found_by_their_parts_in_order():
    columns = ["Loss/total", "Loss/component_b", "Gradients/b_norm", "Loss/component_a"]
    expected = [("b", "Loss/component_b"), ("a", "Loss/component_a")]
    assert list(tags.COMPONENT.parts(columns).items()) == expected
    # Names of a history look at the tags of one kind only, and remember what was found.
    names = tags.Names([*columns, "depth"])
    assert list(tags.COMPONENT.parts(names).items()) == list(tags.COMPONENT.parts(names).items()) == expected
    assert tags.Family("", "th").parts(names) == {"dep": "depth"}
    assert names.of_kind("Gradients") == ["Gradients/b_norm"]
    assert not names.of_kind("Memory")


def test_a_sample_has_a_place_in_the_batch():
    assert tags.sample_loss(3) == "Sample/3/loss"
    assert tags.sample_place("Sample/3/loss") == 3
    assert [tags.sample_place(tag) for tag in ("Sample/x/loss", "Sample/3/lost", "Loss/total")] == [None] * 3


def test_the_kind_of_a_tag_is_its_first_part():
    assert [tags.kind(tag) for tag in ("Loss/total", "Machine/CPU/process_MB", "alone")] == ["Loss", "Machine", "alone"]
    assert tags.gpu_reading(1, "power_W") == "Machine/GPU1/power_W"


def test_sinks_leave_out_bookkeeping():
    names = ["Sample/0/loss", "Guard/refused", "Guarded/x", "Loss/total"]
    assert [name for name in names if tags.is_bookkeeping(name)] == ["Sample/0/loss", "Guard/refused"]
