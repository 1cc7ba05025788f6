"""A comparison as the output of a notebook's cell."""

from fieldwatch.report.compare import compare, shown_comparison
from fieldwatch.report.compare.comparison_card import MOST_RUNS


def test_the_answer_and_the_values_of_every_run_are_shown(side):
    found = shown_comparison(compare([side("<b>", {"Eval/mae": [2.0, 0.25]}), side("other", {"Eval/mae": [3.0, 2.5]})]))
    page = found._repr_html_()
    assert "&lt;b&gt; is best: Eval/mae 0.25" in page
    assert '<td class="number">2.5</td>' in page
    assert repr(found).startswith("<Comparison: <b> is best")


def test_what_is_left_out_is_counted(side):
    found = shown_comparison(compare([side(f"run{k}", {"Eval/mae": [k + 1.0]}) for k in range(MOST_RUNS + 2)]))
    assert "Not shown: 2 more runs." in found._repr_html_()


def test_runs_without_a_metric_in_common_are_shown(side):
    assert "No best run" in shown_comparison(compare([side("a", {"x": [1.0]}), side("b", {"y": [1.0]})]))._repr_html_()
