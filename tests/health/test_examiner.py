"""The examiner reports each finding once, at the same steps live and in a replay."""

import time

import numpy as np
import pytest

from fieldwatch.health import GENERAL, Examiner, Finding, examine
from fieldwatch.health.rules.finite import NonFinite
from fieldwatch.health.rules.gradients import GradientExploding
from fieldwatch.health.rules.losses import LossJump
from fieldwatch.health.rules.quality import Collapse
from fieldwatch.record import Block, EventLog, History, Journal, read_history

RULES = (*GENERAL, Collapse(metrics=("Train/PSNR",)))


def rows(start: int, end: int) -> list[Block]:
    """Record a run with a jump at 200, NaN at 333, a dead group from 420, starved rays from 500; 50 steps per epoch."""
    blocks: list[Block] = []
    for first in range(start // 50 * 50, end, 50):
        steps = np.arange(max(first, start), min(first + 50, end))
        loss = np.where(steps < 200, 1.0, 5.0) + 0.1 * np.sin(steps)
        loss[steps == 333] = np.nan
        columns = {
            "Loss/total": loss,
            "Loss/component_normal": loss - 0.5,
            "Gradients/sdf_norm": np.where(steps < 420, 0.5, 0.0),
            "samples_per_ray": np.where(steps < 500, 3.0, 0.0),
            "Guard/refused": (steps == 333) * 1.0,
        }
        blocks.append(_block("step", columns, steps, steps))
        if steps[-1] == first + 49:
            epoch = first // 50 + 1
            quality = {"Train/PSNR": np.array([30.0 if epoch < 9 else 20.0]), "Eval/Info/num_val_frames": np.zeros(1)}
            blocks.append(_block("epoch", quality, steps[-1:], np.array([epoch])))
    return blocks


def _block(axis: str, columns: dict[str, np.ndarray], steps: np.ndarray, positions: np.ndarray) -> Block:
    values = np.stack([*columns.values()], axis=1)
    names = tuple(columns)
    seconds = 0.1 * (steps + 1.0)
    return Block(axis=axis, columns=names, steps=steps, seconds=seconds, positions=positions, values=values)


class Live:
    """Process rows like a run does: journal, history and examinations in order."""

    def __init__(self, folder, start=0):
        self.journal = Journal(folder)
        self.events = EventLog(folder)
        self.examiner = Examiner(RULES)
        self.history = History()
        self.findings = []
        if start:
            self.journal.segment(start)
            self.events.segment(start)
            self.history = read_history(folder, capacity=4096)
            self.findings = [Finding.from_json(event) for event in self.history.events("finding")]
            self.examiner.mark_reported(self.findings)
        self.event({"kind": "windows", "step": start, "windows": {"normal": (0, 10_000), "mask": (100, 10_000)}})
        self.event({"kind": "phase", "step": 300, "name": "late"})

    def event(self, event):
        self.events.append(event)
        self.history.add_event(event)

    def train(self, start, end):
        for block in rows(start, end):
            self.journal.append(block)
            for part, due in self.examiner.split(block):
                self.history.extend(part)
                if due:
                    self.look()
        self.look()
        self.journal.close()
        self.events.close()
        return self

    def look(self):
        for finding in self.examiner.examine(self.history):
            self.findings.append(finding)
            self.event(finding.as_event())


def test_a_replay_says_exactly_what_the_live_run_said(tmp_path):
    live = Live(tmp_path).train(0, 700).findings
    assert examine(tmp_path, RULES) == live
    named = {finding.rule for finding in live}
    assert named >= {
        "LossJump",
        "NonFinite",
        "DeadGroup",
        "Collapse",
        "DeclaredButAbsent",
    }


def test_a_run_that_was_resumed_says_the_same_as_one_that_was_not(tmp_path):
    whole = Live(tmp_path / "whole").train(0, 700).findings
    Live(tmp_path / "resumed").train(0, 450)
    resumed = Live(tmp_path / "resumed", start=410).train(410, 700).findings
    assert resumed == whole
    assert examine(tmp_path / "resumed", RULES) == whole
    stored = [Finding.from_json(event) for event in read_history(tmp_path / "resumed").events("finding")]
    assert stored == whole


def test_a_finding_comes_once_per_phase(tmp_path):
    """Phases begin at 0, 100 (a term's window) and 300 (named). The jump persists, but is reported only once."""
    live = Live(tmp_path).train(0, 700).findings
    phases = np.searchsorted([0, 100, 300], [finding.step for finding in live], side="right")
    keys = [(finding.rule, finding.subject, phase) for finding, phase in zip(live, phases, strict=True)]
    assert len(keys) == len(set(keys))
    assert [finding.step for finding in live if finding.rule == "LossJump"] == [215]


def test_a_phase_that_ended_between_two_looks_is_still_judged(make, block_of):
    """The norm explodes in steps 396 to 409, the phase ends at 410; examinations are at 384 and 416."""
    norm = np.full(416, 5.0)
    norm[396:410] = 5000.0
    history = make(events=[{"kind": "phase", "step": 410, "name": "next"}])
    examiner = Examiner([GradientExploding()], every=32)
    found = []
    for part, due in examiner.split(block_of({"Gradients/total_norm": norm})):
        history.extend(part)
        if due:
            found += examiner.examine(history)
    assert [finding.step for finding in found] == [403]


def test_a_border_starts_the_baseline_again(make):
    jump = np.where(np.arange(400) < 200, 1.0, 50.0)
    assert LossJump()(make({"Loss/total": jump})) != ()
    for declared in ({"windows": {"normal": (200, 700)}}, {"events": [{"kind": "phase", "step": 200, "name": "fine"}]}):
        assert LossJump()(make({"Loss/total": jump}, **declared)) == ()


def test_a_finding_is_reported_again_only_if_its_severity_has_risen(make):
    """A refused NaN is a warning; an applied one of the same term later is an error; a third one is not reported."""
    values = np.ones(96)
    values[[5, 40, 70]] = np.nan
    refused = np.zeros(96)
    refused[5] = 1
    history = make({"Loss/component_sdf": values, "Guard/refused": refused})
    examiner = Examiner([NonFinite()])
    found = examiner.examine(history)
    assert [(finding.severity, finding.step) for finding in found] == [("warning", 5), ("error", 40)]
    assert "refused" in found[0].message
    assert examiner.examine(history) == []


def test_looks_come_at_multiples_of_every(block_of):
    examiner = Examiner([], every=32)
    cuts = [(part.steps.tolist(), due) for part, due in examiner.split(block_of({"a": np.zeros(70)}))]
    assert [(steps[0], steps[-1], due) for steps, due in cuts] == [(0, 31, True), (32, 63, True), (64, 69, False)]


def test_a_multiple_that_no_row_meets_is_looked_at_before_the_next_row(block_of):
    """With rows at 0, 20, 40, ..., 120, examinations are due at 32, 64 and 96, before 40, 80 and 100."""
    examiner = Examiner([], every=32)
    cuts = [(part.steps.tolist(), due) for part, due in examiner.split(block_of({"a": np.zeros(7)}, stride=20))]
    assert cuts == [([0, 20], True), ([40, 60], True), ([80], True), ([100, 120], False)]
    assert [due for _, due in examiner.split(block_of({"a": np.zeros(1)}, first=130))] == [True, False]


@pytest.mark.parametrize(("pause", "spacing"), [(0.001, 256), (0.01, 128), (0.1, 64)])
def test_a_fast_loop_is_examined_less_often_from_step_1024_on(block_of, pause, spacing):
    """Steps take 1, 10 and 100 ms: examinations are a second apart, or 256 steps."""
    examiner = Examiner([])
    ends = []
    for first in range(0, 4096, 50):
        block = block_of({"a": np.zeros(50)}, first=first, seconds=pause * np.arange(first, first + 50))
        ends += [int(part.steps[-1]) + 1 for part, due in examiner.split(block) if due]
    assert ends[:16] == list(range(64, 1025, 64))
    later = [end for end in ends if 1024 < end <= 4096]
    assert set(range(1280, 4097, 256)) <= set(later)
    assert set(np.diff(later)) == {spacing}


@pytest.mark.parametrize(("pause", "spacing"), [(0.0005, 1024), (0.002, 512), (0.1, 64)])
def test_a_fast_loop_is_examined_even_less_often_from_step_4096_on(block_of, pause, spacing):
    """Steps take 0.5, 2 and 100 ms: examinations are a second apart, or 1,024 steps."""
    examiner = Examiner([])
    ends = []
    for first in range(0, 9216, 512):
        block = block_of({"a": np.zeros(512)}, first=first, seconds=pause * np.arange(first, first + 512))
        ends += [int(part.steps[-1]) + 1 for part, due in examiner.split(block) if due]
    later = [end for end in ends if end > 4096]
    assert set(range(5120, 9217, 1024)) <= set(later)
    assert set(np.diff(later)) == {spacing}


def test_steps_of_a_fast_loop_that_recorded_nothing_are_examined_too(block_of):
    """With a row every 300 steps, no row completes an interval: all up to 4,200, then one for each 1,024 steps."""
    examiner = Examiner([])
    block = block_of({"a": np.zeros(40)}, stride=300, seconds=1e-6 * np.arange(40))
    assert sum(due for _, due in examiner.split(block)) == 14 + 7


@pytest.mark.parametrize(("surge", "end", "steps"), [(1100, 1114, 1400), (4200, 4214, 5200)])
def test_a_phase_that_ended_between_two_examinations_of_a_fast_loop_is_still_judged(make, block_of, surge, end, steps):
    """The norm explodes in the 14 steps before the end of a phase; no examination is between the two."""
    norm = np.full(steps, 5.0)
    norm[surge:end] = 5000.0
    history = make(events=[{"kind": "phase", "step": end, "name": "next"}])
    examiner = Examiner([GradientExploding()])
    found = []
    for part, due in examiner.split(block_of({"Gradients/total_norm": norm}, seconds=1e-4 * np.arange(steps))):
        history.extend(part)
        if due:
            found += examiner.examine(history)
    assert [finding.step for finding in found] == [surge + 7]


def test_plain_callables_are_rules(make):
    def too_green(history):
        """Find green pixels."""
        value = history["green"].values[-1] if "green" in history else 0.0
        return (
            Finding(rule="too_green", step=3, severity="note", message="green", remedy="paint") if value > 1 else None
        )

    assert Examiner([too_green]).examine(make({"green": np.full(4, 2.0)})) != []
    assert Examiner([too_green]).examine(make({"red": np.full(4, 2.0)})) == []


def test_a_rule_that_fails_is_a_finding_and_the_others_go_on(make):
    def broken(history):
        return history["nothing"]

    def wrong(history):
        return ("text",)

    history = make({"Gradients/total_norm": np.where(np.arange(99) < 50, 1.0, 1e5)})
    found = Examiner([broken, wrong, GradientExploding()]).examine(history)
    messages = {finding.rule: finding.message for finding in found}
    assert messages.keys() == {"broken", "wrong", "GradientExploding"}
    assert "failed: KeyError" in messages["broken"]
    assert "returned str" in messages["wrong"]


class StrangeError(Exception):
    """A user-defined error class."""


@pytest.mark.parametrize("fault", [OSError, ImportError, KeyError, MemoryError, StopIteration, StrangeError])
def test_whatever_a_rule_raises_is_a_finding(make, fault):
    def broken(history):
        raise fault("no service")

    (found,) = Examiner([broken]).examine(make({"Loss/total": np.ones(99)}))
    assert (found.rule, found.subject, found.severity) == ("broken", "rule failed", "warning")
    assert fault.__name__ in found.message


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_an_end_that_is_asked_for_in_a_rule_is_no_finding(make, ending):
    def ended(history):
        raise ending

    with pytest.raises(ending):
        Examiner([ended]).examine(make({"Loss/total": np.ones(99)}))


@pytest.mark.parametrize("every", [0, 65])
def test_an_interval_that_misses_phases_is_refused(every):
    with pytest.raises(ValueError, match=rf"every={every}\): expected 1 to 64"):
        Examiner([], every=every)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run folder.*/gone"):
        examine(tmp_path / "gone", RULES)


def test_a_look_at_a_full_window_costs_little(make, rng):
    """All general rules on 4096 steps of 39 metrics cost less than one merge sort and one plain sum of these series.

    A merge sort: processors with AVX-512 do numpy's usual one ten times as fast, and all else no faster. A sum in plain
    Python: the rules are small calls, and how quick the interpreter is beside numpy differs from machine to machine.
    """
    names = [f"Loss/component_{i}" for i in range(12)] + [f"Gradients/g{i}_norm" for i in range(12)]
    names += [f"Gradients/update_ratio_g{i}" for i in range(12)] + ["Loss/total", "Gradients/total_norm", "Time/step"]
    history = make({name: 0.5 + 0.01 * rng.standard_normal(4096) for name in names})
    series = [history[name].values for name in names]
    rules = min(_seconds(lambda: Examiner(RULES).examine(history)) for _ in range(15))
    sort = min(_seconds(lambda: [np.sort(values, kind="stable") for values in series]) for _ in range(15))
    plain = min(
        _seconds(lambda: [sum(value * value for value in values.tolist()) for values in series]) for _ in range(15)
    )
    assert rules < sort + plain, f"rules {1e3 * rules:.2f} ms, sort {1e3 * sort:.2f} ms, plain sum {1e3 * plain:.2f} ms"


def _seconds(work) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin
