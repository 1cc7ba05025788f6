import json
import math
import re

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from fieldwatch import Declared, Outputs, Profile, Run, Terms, profile_tensors, read_history
from fieldwatch.record import TOOLKIT
from fieldwatch.record.memory import read_memory_log, read_tensor_log
from fieldwatch.report.memory import read_trace

CATEGORIES = ("parameters", "gradients", "optimizer", "buffers", "data", "activations", "other")
MB = 2**20


class Toy:
    """A regression with known sizes: 4 MiB of parameters, 4 MiB of gradients, 8 MiB of Adam state."""

    def __init__(self):
        self.model = nn.Linear(1024, 1024, bias=False)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.images = torch.randn(512, 1024)

    def loss(self):
        return self.model(self.images).square().mean()


def train(folder, toy, *, steps=20, profile=None, fail_at=None):
    with Run(folder, profile=profile, declared=Declared(metrics=TOOLKIT), outputs=Outputs(sinks=(), rules=())) as run:
        run.track(model=toy.model, optimizer=toy.optimizer, data={"images": toy.images})
        run.resume()
        for step in run.steps(steps):
            with step.span("forward"):
                terms = Terms(fit=(1.0, toy.loss()))
            toy.optimizer.zero_grad()
            with step.span("backward"):
                terms.total.backward()
            if step.index == fail_at:
                raise RuntimeError("something broke in the middle of a profiled step")
            step.observe(terms)
            step.update(toy.optimizer)


def test_every_kind_of_owner_is_right_to_the_byte(tmp_path):
    train(tmp_path / "run", Toy(), profile=Profile(interval=5))
    census = read_memory_log(tmp_path / "run")[-1]
    kinds = {kind: sum(parts.values()) for kind, parts in census["owners"].items()}
    steps = 4  # Adam counts its steps in a scalar tensor
    assert kinds == {
        "parameters": 4 * MB,
        "gradients": 4 * MB,
        "optimizer": 8 * MB + steps,
        "buffers": 0,
        "data": 2 * MB,
    }
    assert census["moment"] == "update"
    owned = sum(kinds.values()) + sum(census["saved"].values()) + census["rounding"]
    assert owned + census["workspace"] + census["unattributed"] == census["allocated"]
    assert census["saved_at_peak"]["forward"] == 512 * 1024 * 4  # the square saves its input


def test_log_tags_and_command_agree_on_the_fragmentation(tmp_path):
    """Memory allocated after the update is not included anywhere."""
    toy = Toy()
    held = []
    real = toy.optimizer.step

    def step_and_hold(*arguments, **options):
        result = real(*arguments, **options)
        held.append(torch.ones(8 * MB))  # 32 MiB more than at the update
        return result

    toy.optimizer.step = step_and_hold
    with Run(
        tmp_path / "run",
        profile=Profile(interval=5),
        declared=Declared(metrics=TOOLKIT),
        outputs=Outputs(sinks=(), rules=()),
    ) as run:
        run.track(groups={"model": toy.model})
        for step in run.steps(10):
            toy.optimizer.zero_grad()
            toy.loss().backward()
            toy.optimizer.step()
            step.record({"Loss/total": 1.0})
    lines = read_memory_log(tmp_path / "run")
    assert [line["moment"] for line in lines] == ["update"] * 2
    percents = [100 * (line["reserved"] - line["allocated"]) / line["reserved"] for line in lines]
    tags = read_history(tmp_path / "run")["TensorProfiling/fragmentation_percent"].values.tolist()
    assert tags == pytest.approx(percents, abs=1e-9)
    idle = [line["fragmentation"]["not_returnable"] + line["fragmentation"]["returnable"] for line in lines]
    assert idle == [line["reserved"] - line["allocated"] for line in lines]
    (log,) = (tmp_path / "run" / "profiles").glob("*.log")
    table = read_tensor_log(log)
    own = 100 * (table.reserved - table.allocated) / table.reserved
    assert table.fragmentation.tolist() == pytest.approx(percents, abs=0.05)
    assert table.fragmentation.tolist() == pytest.approx(own.tolist(), abs=0.1)
    assert read_trace(tmp_path / "run").fragmentation.tolist() == pytest.approx(percents)
    assert read_trace(log).fragmentation.tolist() == pytest.approx(percents, abs=0.05)


def test_only_due_steps_are_profiled(tmp_path):
    train(tmp_path / "run", Toy(), profile=Profile(interval=4, window=(6, 14)))
    assert [census["step"] for census in read_memory_log(tmp_path / "run")] == [7, 11]


def test_tags_are_in_the_journal_and_add_up(tmp_path):
    train(tmp_path / "run", Toy(), profile=Profile(interval=5, large_mb=3))
    history = read_history(tmp_path / "run")
    tags = {name: history[f"TensorProfiling/Tensor_Category/{name}_MB"].values[-1] for name in CATEGORIES}
    assert tags["parameters"] == tags["gradients"] == 4
    assert tags["data"] == 2
    account = {
        name: history[f"TensorProfiling/Account/{name}_MB"].values[-1]
        for name in ("owners", "saved", "rounding", "workspace", "unattributed", "allocated")
    }
    assert math.isclose(sum(account.values()), 2 * account["allocated"], rel_tol=1e-6)
    assert history["TensorProfiling/Large_Tensors/count"].values[-1] == 4
    assert history["TensorProfiling/Large_Tensors/total_MB"].values[-1] == 16
    assert history["TensorProfiling/Peak/backward_MB"].values[-1] > 0
    assert history["TensorProfiling/Tensor_Category/data_MB"].steps.tolist() == [4, 9, 14, 19]


def test_the_alternative_tag_names_are_an_option(tmp_path):
    toy = Toy()
    seen = []
    with (
        profile_tensors(
            tmp_path, profile=Profile(interval=1, names="Memory"), sinks=(seen.append,), model=toy.model
        ) as loop,
        loop.step(0),
    ):
        toy.loss().backward()
    assert "Memory/Tensor_Category/parameters_MB" in seen[0].columns
    assert not any(name.startswith("TensorProfiling") for name in seen[0].columns)


def test_the_text_log_has_the_original_format(tmp_path):
    train(tmp_path / "run", Toy(), profile=Profile(interval=10, large_mb=3))
    (log,) = (tmp_path / "run" / "profiles").glob("tensor_profile_*.log")
    text = log.read_text()
    assert re.findall(r"Iteration (\d+) \| \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n={80}\n", text) == ["10", "20"]
    assert re.search(r"Allocated: [\d.]+ MB \| Reserved: [\d.]+ MB \| Fragmentation: [\d.]+%", text)
    assert re.search(r"  parameters     :     4\.00 MB\n", text)
    assert "Large Tensors (>3MB): 4\nTop 5 largest:\n  4.00 MB | shape=(1024, 1024) | dtype=float32\n" in text


def test_the_profile_does_not_change_the_weights(tmp_path):
    torch.manual_seed(3)
    plain = Toy()
    torch.manual_seed(3)
    profiled = Toy()
    train(tmp_path / "a", plain)
    train(tmp_path / "b", profiled, profile=Profile(interval=1))
    assert torch.equal(plain.model.weight, profiled.model.weight)


def test_without_a_profile_only_counters_are_recorded(tmp_path):
    train(tmp_path / "run", Toy())
    history = read_history(tmp_path / "run")
    assert not (tmp_path / "run" / "memory.jsonl").exists()
    assert not (tmp_path / "run" / "profiles").exists()
    assert [name for name in history.names() if name.startswith("TensorProfiling")] == []
    assert len(history["Memory/allocated_MB"]) == len(history["Memory/peak_MB"]) == 20
    assert history["Memory/parameters_MB"].values.tolist() == [4.0] * 20
    assert history["Memory/capacity_MB"].values[0] > history["Memory/allocated_MB"].values[0]
    assert history["Machine/CPU/process_MB"].values[0] > 0


def test_a_failed_step_leaves_no_hook_behind(tmp_path):
    toy = Toy()
    with pytest.raises(RuntimeError, match="in the middle"):
        train(tmp_path / "run", toy, profile=Profile(interval=1), fail_at=3)
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    assert [census["moment"] for census in read_memory_log(tmp_path / "run")][-1] == "end"
    train(tmp_path / "other", toy, profile=Profile(interval=1))


def test_a_resumed_run_records_each_step_once(tmp_path):
    train(tmp_path / "run", Toy(), steps=10, profile=Profile(interval=2))
    train(tmp_path / "run", Toy(), steps=20, profile=Profile(interval=2))
    assert [census["step"] for census in read_memory_log(tmp_path / "run")] == list(range(1, 20, 2))


def test_spans_in_a_loop_without_a_run(tmp_path):
    toy = Toy()
    with profile_tensors(
        tmp_path, model=toy.model, optimizers=[toy.optimizer], data={"images": toy.images}, profile=Profile(interval=2)
    ) as loop:
        for iteration in range(6):
            with loop.step(iteration):
                toy.optimizer.zero_grad()
                with loop.span("render"):
                    loss = toy.loss()
                loss.backward()
                toy.optimizer.step()
    lines = [json.loads(line) for line in (tmp_path / "memory.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 3, 5]
    assert lines[-1]["owners"]["optimizer"]["model"] == 8 * MB + 4
    assert set(lines[-1]["peaks"]) == {"render"}
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    shown = [event.value for event in events.Scalars("TensorProfiling/Tensor_Category/parameters_MB")]
    assert shown == [4.0, 4.0, 4.0]


def test_untracked_activations_are_absent_and_not_zero(tmp_path):
    train(tmp_path / "run", Toy(), profile=Profile(interval=5, activations=False))
    assert "TensorProfiling/Tensor_Category/activations_MB" not in read_history(tmp_path / "run")
    assert read_memory_log(tmp_path / "run")[-1]["saved_at_peak"] is None
    with torch.autograd.graph.save_on_cpu():
        train(tmp_path / "hidden", Toy(), profile=Profile(interval=5))
    assert "TensorProfiling/Tensor_Category/activations_MB" not in read_history(tmp_path / "hidden")


def test_an_optimizer_stepped_by_the_loop_is_known(tmp_path):
    toy = Toy()
    with Run(tmp_path / "run", profile=Profile(interval=2), outputs=Outputs(sinks=(), rules=())) as run:
        run.track(groups={"model": toy.model})
        for step in run.steps(4):
            toy.optimizer.zero_grad()
            loss = toy.loss()
            loss.backward()
            toy.optimizer.step()
            step.record({"Loss/total": loss})
    assert read_memory_log(tmp_path / "run")[-1]["owners"]["optimizer"] == {"model": 8 * MB + 4}


def test_a_profile_without_an_account_leaves_no_file(tmp_path):
    train(tmp_path / "run", Toy(), steps=5, profile=Profile(interval=50))
    assert not (tmp_path / "run" / "memory.jsonl").exists()
    assert not (tmp_path / "run" / "profiles").exists()


def test_data_cannot_use_a_name_twice(tmp_path):
    with Run(tmp_path / "run", outputs=Outputs(sinks=(), rules=())) as run:
        run.track(data={"images": torch.zeros(2)})
        with pytest.raises(ValueError, match="images"):
            run.track(data={"images": torch.zeros(2)})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"interval": 0}, "interval must be at least 1 step.*got 0"),
        ({"interval": -5}, "got -5"),
        ({"window": (9, 3)}, "profile window must be FIRST LAST.*got 9 3"),
        ({"large_mb": 0}, "must be at least 1 MiB.*got 0 MiB"),
        ({"snapshot_at": (-1,)}, "snapshot steps must be 0-based"),
    ],
)
def test_values_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Profile(**wrong)


def test_snapshots_are_refused_without_a_cuda_allocator(tmp_path):
    with pytest.raises(ValueError, match=r"snapshot on cpu.*CUDA allocator"):
        train(tmp_path / "run", Toy(), profile=Profile(snapshot_at=(3,)))
