"""Ledger of runs in which every growth, prune and reset, and its effect, was planted."""

import csv
import math

import numpy as np
import pytest
from rich.console import Console

from fieldwatch.report.growth import (
    LedgerEntry,
    chosen_entries,
    growth_ledger,
    ledger_table,
    totals_of,
    totals_text,
    write_csv,
)


def growth(step, before=5000, **counts):
    added = counts.get("cloned", 0) + counts.get("children", 0) + counts.get("drawn", 0)
    removed = counts.get("split", 0) + counts.get("pruned", 0)
    sums = {
        "added": added,
        "removed": removed,
        "growth_until": 500,
        "before": before,
        "after": before + added - removed,
    }
    return {"kind": "growth", "step": step, **counts, **sums}


def prune(step, **facts):
    return {"kind": "prune", "step": step, **facts}


def reset(step, lowered=4000):
    return {"kind": "reset", "step": step, "lowered": lowered}


def printed(*things):
    console = Console(width=80, color_system=None, record=True, file=None, quiet=False)
    with console.capture() as caught:
        for thing in things:
            console.print(thing)
    return caught.get()


def test_counts_come_from_the_event_and_the_means_from_the_steps_around_it(ledger_run):
    event = growth(99, cloned=300, split=100, children=200, pruned=50, too_large=40, held_back=7)
    (entry,) = growth_ledger(ledger_run([event]))
    assert (entry.step, entry.kind, entry.before, entry.after, entry.removed) == (99, "growth", 5000, 5350, 150)
    assert (entry.cloned, entry.split, entry.children, entry.pruned, entry.held_back) == (300, 100, 200, 50, 7)
    assert entry.too_large == 40
    assert "(--largest-size): 40" in printed(totals_text(totals_of([entry])))
    assert (entry.psnr_before, entry.psnr_after) == pytest.approx((24.5, 24.5))
    assert (entry.memory_before, entry.memory_after) == pytest.approx((108.95, 110.95))
    assert (entry.loss_before, entry.loss_after) == pytest.approx((1.755, 1.755), abs=1e-6)
    assert (entry.parameters_before, entry.parameters_after) == (8, 8)
    assert (entry.psnr_change, entry.fell, entry.recovered_after) == (pytest.approx(0, abs=1e-6), False, None)


@pytest.mark.parametrize("names", [True, False], ids=["photos", "means"])
def test_a_fall_that_is_made_up_says_after_how_many_steps(ledger_run, names):
    (entry,) = growth_ledger(ledger_run([reset(99)], falls=[(99, 80, 6.0)], names=names))
    assert entry.psnr_change == pytest.approx(-6, abs=1e-6)
    assert (entry.fell, entry.lasting, entry.watched) == (True, False, 200)
    assert 80 < entry.recovered_after <= 100
    assert (entry.before, entry.after, entry.lowered) == (5000, 5000, 4000)


def test_a_fall_that_lasts_is_told_from_one_that_could_not_be_watched_for_long_enough(ledger_run):
    run = ledger_run(
        [prune(99, before=5000, after=900, removed=4100), reset(450)], falls=[(99, 900, 3.0), (450, 900, 2.0)]
    )
    lasting, late = growth_ledger(run)
    assert (lasting.lasting, lasting.recovered_after, lasting.pruned, lasting.removed) == (True, None, 4100, 4100)
    assert (late.fell, late.lasting, late.watched) == (True, False, 149)
    assert totals_of([lasting, late]).lasting == (99,)


def test_each_photo_is_compared_with_its_own_last_visit(ledger_run):
    """After the event, only easy photos are drawn: a comparison of plain means would show a gain."""
    steps = np.arange(600)
    psnr = np.where(steps % 10 > 4, 35.0, 15.0) - 2.0 * (steps > 99)
    psnr[(steps > 99) & (steps % 10 <= 4)] = np.nan
    (entry,) = growth_ledger(ledger_run([reset(99)], columns={"Train/PSNR": psnr}))
    assert entry.psnr_after - entry.psnr_before == pytest.approx(8)
    assert entry.psnr_change == pytest.approx(-2)


def test_of_two_events_in_one_step_the_last_has_what_came_after(ledger_run):
    first, second = growth_ledger(ledger_run([reset(99), growth(99, cloned=500)], falls=[(99, 30, 6.0)]))
    assert (first.kind, second.kind) == ("growth", "reset")
    assert math.isnan(first.psnr_change)
    assert math.isnan(first.loss_after)
    assert first.loss_before == second.loss_before
    assert second.psnr_change == pytest.approx(-6, abs=1e-6)
    assert (second.before, second.after) == (5500, 5500)


def test_sizes_come_from_the_record_where_the_event_says_none(ledger_run):
    size = np.where(np.arange(600) < 100, 5000, 1200)
    (entry,) = growth_ledger(ledger_run([prune(99)], columns={"Model/size": size}))
    assert (entry.before, entry.after, entry.pruned) == (5000, 1200, 3800)


def test_a_run_that_begins_at_a_later_step(ledger_run):
    (entry,) = growth_ledger(ledger_run([reset(7099)], first=7000, falls=[(7099, 50, 4.0)]))
    assert (entry.step, entry.psnr_change) == (7099, pytest.approx(-4, abs=1e-6))


def test_what_was_not_recorded_is_nan_and_never_zero(ledger_run):
    everything = ("Loss/total", "Train/PSNR", "Memory/allocated_MB", "Memory/parameters_MB")
    (entry,) = growth_ledger(ledger_run([growth(99, cloned=3)], without=everything))
    values = (entry.loss_before, entry.psnr_after, entry.psnr_change, entry.memory_before, entry.parameters_after)
    assert all(map(math.isnan, values))
    assert not entry.lasting
    assert "MiB" not in printed(ledger_table([entry]))


def test_an_event_at_the_very_end_has_nothing_after_it(ledger_run):
    (entry,) = growth_ledger(ledger_run([reset(599)]))
    assert (math.isnan(entry.psnr_after), math.isnan(entry.psnr_change), entry.watched) == (True, True, 0)


def test_events_of_other_kinds_and_a_run_without_growth(ledger_run):
    assert growth_ledger(ledger_run([{"kind": "checkpoint", "step": 99}])) == ()
    assert totals_of(()).last == 0


@pytest.mark.parametrize("bad", [-1, 2.5, "many", True, None])
def test_a_count_that_is_none_is_refused_with_step_and_name(ledger_run, bad):
    message = r"events.jsonl: event 'growth' of step 99: expected cloned to be an integer of at least 0, got "
    with pytest.raises(ValueError, match=message):
        growth_ledger(ledger_run([growth(99) | {"cloned": bad}]))


def test_there_is_no_such_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run folder"):
        growth_ledger(tmp_path / "gone")


def many(count):
    big = {"cloned": 234_567, "split": 345_678, "pruned": 1_234_567, "held_back": 999_999}
    entries = [
        LedgerEntry(step=29_000 + i, kind="growth", before=5_000_000, after=5_000_000 + i, loss_before=0.05, **big)
        for i in range(count)
    ]
    return [*entries, LedgerEntry(step=90_000, kind="reset", before=9, after=9, psnr_change=-22.1, recovered_after=199)]


def test_large_numbers_fit_eighty_columns():
    text = printed(ledger_table(many(3)), totals_text(totals_of(many(3))))
    assert max(map(len, text.splitlines())) <= 80
    assert "235k" in text
    assert "1.23M" in text
    assert "…" not in text


def test_of_many_events_the_notable_ones_are_shown_in_order():
    entries = [*many(100)[:-1], many(1)[-1]]
    shown = chosen_entries(entries, 10)
    assert [entry.step for entry in shown] == [*range(29_091, 29_100), 90_000]
    assert chosen_entries(entries, 500) == entries


def test_a_lasting_fall_is_said_in_words(ledger_run):
    entries = growth_ledger(ledger_run([prune(99, before=5000, after=900, removed=4100)], falls=[(99, 900, 3.0)]))
    text = printed(ledger_table(entries), totals_text(totals_of(entries)))
    assert "never" in text
    assert "1 dB" in text
    assert "200 steps, after: 99" in text
    assert "1 prune: 4,100 pruned" in text
    assert "primitives: 5,000 -> 900" in text


def test_the_csv_has_every_column_and_leaves_the_unknown_empty(ledger_run, tmp_path):
    entries = growth_ledger(ledger_run([growth(99, cloned=3), reset(99)]))
    write_csv(entries, tmp_path / "growth.csv")
    with (tmp_path / "growth.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["kind"], first["cloned"], first["psnr_change"], first["recovered_after"]) == ("growth", "3", "", "")
    assert float(second["psnr_change"]) == pytest.approx(0, abs=1e-6)
    assert second["lasting"] == "0"
