import pytest

from fieldwatch.record import TOOLKIT, Catalogue, Metric, tags
from fieldwatch.record.catalogue import DuplicateMetric, UndeclaredMetric
from fieldwatch.record.charts import Chart, Layout, Margin, Tab, default_layout
from fieldwatch.record.metric import visible_columns


def metric(name, **more):
    return Metric(name=name, unit="", meaning=f"meaning of {name}", **more)


def test_exact_name_wins_over_pattern_and_longer_pattern_over_shorter():
    assert TOOLKIT.require("Gradients/total_norm").name == "Gradients/total_norm"
    assert TOOLKIT.require("Gradients/decoder_norm").name == "Gradients/<group>_norm"
    assert TOOLKIT.require("Gradients/update_ratio_norm").name == "Gradients/update_ratio_<group>"
    assert TOOLKIT.require("Time/step").name == "Time/step"
    assert TOOLKIT.require("Gradients/cosine_sdf_normal_eikonal").name == "Gradients/cosine_<group>_<term>_<term>"


def test_placeholder_stands_for_text_without_a_slash():
    assert TOOLKIT.find("Time/forward/inner") is None
    assert TOOLKIT.find("Time/") is None
    assert TOOLKIT.find("xTime/forward") is None
    assert "Time/forward" in TOOLKIT
    assert 3 not in TOOLKIT


def test_second_look_up_is_the_same_answer():
    assert TOOLKIT.find("Loss/share_normal") is TOOLKIT.find("Loss/share_normal")
    assert TOOLKIT.find("Losses/unknown") is None
    assert TOOLKIT.find("Losses/unknown") is None


def test_undeclared_name_is_told_its_nearest():
    with pytest.raises(
        UndeclaredMetric, match=r"'Gradients/total_nrom' is not declared \(nearest.*'Gradients/total_norm'"
    ):
        TOOLKIT.require("Gradients/total_nrom")
    with pytest.raises(UndeclaredMetric, match="nothing similar"):
        Catalogue().require("x")


def test_duplicates_raise_also_when_added():
    with pytest.raises(DuplicateMetric, match="'a' is declared twice"):
        Catalogue([metric("a"), metric("a")])
    with pytest.raises(DuplicateMetric, match="declared twice"):
        TOOLKIT + TOOLKIT
    both = Catalogue([metric("a")]) + Catalogue([metric("b")])
    assert [one.name for one in both] == ["a", "b"]
    assert len(both) == 2


def test_markdown_lists_every_metric_once_in_its_group():
    catalogue = Catalogue(
        [metric("Loss/a|b"), metric("Eval/psnr", better="higher", axis="epoch"), metric("Loss/c", kind="histogram")]
    )
    text = catalogue.markdown()
    assert text.index("## Loss") < text.index("## Eval")
    assert "meaning of Loss/a\\|b" in text
    assert "| `Eval/psnr` | - | higher | epoch |" in text
    assert "step (histogram)" in text
    assert all(TOOLKIT.markdown().count(f"`{one.name}`") == 1 for one in TOOLKIT)


def test_toolkit_covers_the_tags_of_the_contract():
    tags = (
        "Loss/total Loss/component_a Loss/weight_a Loss/weighted_a Loss/share_a Gradients/total_norm "
        "Gradients/g_norm Gradients/max Gradients/update_ratio_g Gradients/share_g_a Gradients/cosine_g_a_b "
        "Parameters/g_mean Parameters/g_std Guard/refused "
        "Time/render Time/step LearningRate/g Sample/0/loss"
    )
    assert all(tag in TOOLKIT for tag in tags.split())
    assert visible_columns(tags.split())[-1] == "LearningRate/g"


def test_everything_that_is_measured_at_a_module_is_declared():
    """A run refuses metrics that nobody has declared."""
    families = [each for each in vars(tags).values() if isinstance(each, tags.Family)]
    names = [name for family in families if (name := family.tag("net")).startswith(f"{tags.FORWARD}/")]
    assert len(names) > 40
    assert [name for name in names if TOOLKIT.find(name) is None] == []


def test_default_layout_groups_by_path():
    names = ("Train/Loss/pixel", "Train/Loss/clip", "Train/PSNR", "Eval/Gap/psnr_gap", "plain", "Guard/streak")
    layout = default_layout([*map(metric, names), metric("Eval/Histogram/x", kind="histogram")])
    charts = {tab.title: {chart.title: chart.tags for chart in tab.charts} for tab in layout.tabs}
    assert charts == {
        "Train": {"Loss": ("Train/Loss/pixel$", "Train/Loss/clip$"), "PSNR": ("Train/PSNR$",)},
        "Eval": {"Gap": ("Eval/Gap/psnr_gap$",)},
        "Other": {"plain": ("plain$",)},
    }


def test_a_chart_names_its_tags_in_full_or_describes_them():
    exact = Chart.of("a", "Train/PSNR", "v.1")
    described = Chart.matching("b", "Loss/share_[^/]+")
    assert (exact.title, exact.tags) == ("a", ("^Train/PSNR$", r"^v\.1$"))
    assert (described.title, described.tags) == ("b", ("^Loss/share_[^/]+$",))


def test_layout_refuses_what_tensorboard_cannot_show():
    chart = Chart(title="a", tags=("a",))
    with pytest.raises(ValueError, match="got 0 tags and 0 margins"):
        Chart(title="a")
    with pytest.raises(ValueError, match="got 1 tags and 1 margins"):
        Chart(title="a", tags=("a",), margins=(Margin(value="v", lower="l", upper="u"),))
    with pytest.raises(ValueError, match="no chart"):
        Tab(title="a", charts=())
    with pytest.raises(ValueError, match=r"unique, got \['a', 'a'\]"):
        Layout(tabs=(Tab(title="a", charts=(chart,)), Tab(title="a", charts=(chart,))))
