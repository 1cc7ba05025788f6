"""Numbers of a step on a GPU reach the host a step later, without a wait, and survive a checkpoint."""

import pytest
import torch

from fieldwatch.recon.pipelines.normals.config import NormalsConfig, RayOptions
from fieldwatch.recon.pipelines.normals.delayed_counts import DelayedCounts, DelayedNumbers
from fieldwatch.recon.pipelines.normals.loss_monitor import LossMonitor
from fieldwatch.recon.pipelines.normals.ray_budget import RayBudget
from fieldwatch.recon.pipelines.normals.start import _device_notes
from fieldwatch.recon.pipelines.normals.step_output import RayStatistics

pytestmark = pytest.mark.pretended


def counted(rays, samples, faults=0):
    """Counts of two micro-batches on the device."""
    row = [rays, 0, 3, 6, 2, faults, samples]
    counts = torch.tensor([row, [10, 0, 0, 0, 0, 0, 30]], dtype=torch.int32).pin_memory().to("cuda", non_blocking=True)
    return RayStatistics(rays=0, samples=0, filled=0, starved=0.0, counts=counts)


def test_counts_arrive_a_step_later_without_a_wait(fake_cuda):
    delayed = DelayedCounts()
    first, second = counted(20, 100), counted(30, 200)
    before = fake_cuda.ledger.copy()
    assert delayed.exchange(first) is None
    known = delayed.exchange(second)
    assert fake_cuda.ledger.since(before).waits.total() == 0
    assert (known.rays, known.samples, known.filled, known.starved) == (30, 130, 2, 0.25)
    assert delayed.exchange(first).samples == 230


def test_counts_under_way_are_part_of_a_checkpoint(fake_cuda):
    undisturbed, stopped, resumed = DelayedCounts(), DelayedCounts(), DelayedCounts()
    for delayed in (undisturbed, stopped):
        delayed.exchange(counted(20, 100))
    state = stopped.state_dict()
    assert state == stopped.state_dict()  # reading it changes nothing
    resumed.load_state_dict(state)
    ends = [delayed.exchange(counted(30, 200)) for delayed in (undisturbed, stopped, resumed)]
    assert ends[0] == ends[1] == ends[2]


def test_on_a_cpu_counts_are_those_of_the_step_and_leave_nothing(fake_cuda):
    delayed = DelayedCounts()
    delayed.exchange(counted(20, 100))
    now = RayStatistics(rays=4, samples=9, filled=1, starved=0.5)
    assert delayed.exchange(now) is now  # a run that goes on on a CPU
    assert delayed.state_dict() == {}
    budget = RayBudget(RayOptions())
    assert budget.state_dict() == {"budget": None}
    budget.load_state_dict({"budget": None})
    assert DelayedNumbers().take() is None


def test_faults_of_any_micro_batch_are_errors(fake_cuda):
    delayed = DelayedCounts()
    delayed.exchange(counted(20, 100, faults=2))
    with pytest.raises(ValueError, match="not finite"):
        delayed.exchange(counted(20, 100))


def test_records_are_those_of_the_step_itself(fake_cuda):
    recorded = counted(20, 100).recorded()
    found = {tag.removeprefix("Statistics/"): value.cpu().item() for tag, value in recorded.items()}
    assert found == {"samples_per_ray": pytest.approx(130 / 30), "rays": 30, "filled_rays": 2, "starved_share": 0.5}


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({}, ""),
        ({"rendering": {"gradient_method": "fd"}}, "--gradient-method fd"),
        ({"sdf": {"layers": 2}}, "--layers 2"),
        ({"sdf": {"levels": 16, "features_per_level": 8}}, "128 features"),
        ({"rays": {"sample_budget": 2_000_000}}, "ends of samples"),
    ],
)
def test_a_run_says_why_the_kernels_are_not_used(fake_cuda, flags, reason):
    default = NormalsConfig()
    parts = {name: type(getattr(default, name))(**values) for name, values in flags.items()}
    notes = _device_notes(NormalsConfig(**parts), torch.device("cuda"))
    assert len(notes) == bool(reason)
    assert reason in "".join(notes)


def test_losses_are_judged_a_step_later_without_a_wait(fake_cuda):
    def watched(monitor, steps):
        judged = []
        for step in steps:
            monitor.judge_arrived()
            value = torch.full((), 100.0 if step >= 40 else 1.0, device="cuda")
            monitor.observe({"normal": 2.0}, {"normal": value}, torch.zeros((), device="cuda"))
            if step % 5 == 0:
                monitor.judge()
            judged.append((monitor.high, monitor.worst))
        return judged

    undisturbed, resumed = LossMonitor(), LossMonitor()
    before = fake_cuda.ledger.copy()
    judged = watched(undisturbed, range(48))
    assert fake_cuda.ledger.since(before).waits.total() == 0
    assert judged[45] == (1, 100)  # the step that was judged in step 40
    assert judged[46] == (6, 100)
    stopped = LossMonitor()
    watched(stopped, range(46))
    resumed.load_state_dict(stopped.state_dict())
    assert watched(resumed, range(46, 48)) == judged[46:]
