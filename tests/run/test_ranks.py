"""Several processes in one training: shards, reductions, and timeouts."""

import json
from pathlib import Path

import pytest
import torch

from fieldwatch.cli.new_run import new_run
from fieldwatch.cli.output import BadInput
from fieldwatch.measure import Terms
from fieldwatch.record import read_history, read_manifest
from fieldwatch.report.ranks import read_ranks
from fieldwatch.run import Outputs, Ranks, Run, Saving
from fieldwatch.run.rank_group import RankPatience
from fieldwatch.run.ranks import RankVote
from fieldwatch.run.shared_step import BUCKET_BYTES, buckets
from ports import joined

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("whole", [1, 2, 5, 12])
def test_shards_cover_the_batch_and_their_weighted_means_give_its_mean(world, whole):
    batch = torch.rand(whole, dtype=torch.float64)
    shards = [Ranks(rank, world).shard_of(whole) for rank in range(world)]
    assert torch.equal(torch.cat([batch[shard.first : shard.stop] for shard in shards]), batch)
    assert max(shard.stop - shard.first for shard in shards) - min(shard.stop - shard.first for shard in shards) <= 1
    assert sum(shard.weight for shard in shards) == pytest.approx(1.0)
    mean = sum(shard.weight * batch[shard.padded].mean() for shard in shards)
    assert float(mean) == pytest.approx(float(batch.mean()))
    assert all(len(batch[shard.padded]) >= 1 for shard in shards)


def test_a_batch_smaller_than_the_number_of_ranks_is_refused():
    Ranks(0, 2).refuse_small(2, "--batch")
    with pytest.raises(ValueError, match=r"--batch 1 is too small.*2 processes.*--batch 2.*--nproc-per-node 1"):
        Ranks(0, 2).refuse_small(1, "--batch")


def test_the_rank_is_read_from_the_environment(monkeypatch, tmp_path):
    assert Ranks.of_process().alone
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    ranks = Ranks.of_process()
    assert (ranks.rank, ranks.world, ranks.is_first, ranks.alone) == (2, 4, False, False)
    assert ranks.folder(tmp_path) == tmp_path / "ranks" / "2"
    assert ranks.about({"pipeline": "video"}) == {"pipeline": "video", "rank": 2, "ranks": 4}
    with pytest.raises(BadInput, match="--out"):
        new_run("video")
    with pytest.raises(ValueError, match="rank 4 of 4"):
        Ranks(4, 4)


def test_collectives_of_a_single_process_do_nothing():
    ranks = Ranks()
    tensor = torch.ones(3)
    ranks.sum([tensor])
    assert torch.equal(tensor, torch.ones(3))
    assert ranks.only_first(lambda: 5, "a sum") == 5
    will = RankVote(15, save=True, diverged=False, growth_cap=7.0)
    assert ranks.agree(will) is will
    assert (ranks.broadcast("x"), ranks.all_gather(1), ranks.largest([2.0])) == ("x", [1], [2.0])


def test_ranks_that_have_not_joined_cannot_sum():
    ranks = Ranks(0, 2)
    with pytest.raises(RuntimeError, match="rank 0 of 2 has not joined"):
        ranks.sum([torch.ones(1)])


def test_buckets_have_one_dtype_and_a_limited_size():
    few = [torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(4)]
    assert [[one.dtype for one in bucket] for bucket in buckets(few)] == [[torch.float32] * 2, [torch.float64]]
    large = torch.zeros(BUCKET_BYTES // 4 + 1)
    assert [len(bucket) for bucket in buckets([torch.zeros(1), large, torch.zeros(1), torch.zeros(1)])] == [1, 1, 2]
    with pytest.raises(TypeError, match="dense"):
        next(buckets([torch.zeros(3).to_sparse()]))


def test_the_timeout_is_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("FIELDWATCH_RANK_PATIENCE", "3.5")
    assert RankPatience.of_process() == RankPatience(steady=3.5)
    monkeypatch.setenv("FIELDWATCH_RANK_PATIENCE", "soon")
    with pytest.raises(ValueError, match=r"FIELDWATCH_RANK_PATIENCE.*'soon'"):
        RankPatience.of_process()


def train(folder, batches=5, resume_from=None):
    """A user-written loop: two submodules, one of which is used only by odd samples; batches of three."""
    torch.manual_seed(0)
    first = torch.nn.Linear(2, 1)
    second = torch.nn.Linear(2, 1)
    points = torch.randn(batches, 3, 2)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.1)
    with Run(folder, config={"lr": 0.1}, saving=Saving(every=2), outputs=Outputs(rules=())) as run:
        run.track(first=first, second=second, optimizer=optimizer)
        run.resume(step=resume_from)
        for step in run.steps(batches):
            samples = [0, 1, 2]
            own = step.shard(samples)
            x = points[step.index][own]
            errors = first(x).square().squeeze(1)
            terms = Terms(plain=(1.0, errors.mean()))
            odd = [k for k, sample in enumerate(own) if sample % 2]
            if odd:
                terms |= Terms(odd=(0.5 * len(odd) / len(own), second(x[odd]).square().mean()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms, sample=samples, sample_loss=errors.detach())
            step.update(optimizer, clip=0.5)
            step.record({"Model/size": float(step.sample_loss.sum())})
    return [value.detach() for value in (*first.parameters(), *second.parameters())]


TWO = """
import os, sys
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
import torch
from test_ranks import train, meet
meet()
weights = train(sys.argv[2])
torch.save(weights, sys.argv[2] + f"-{sys.argv[3]}.pt")
"""


def meet():
    """Collective operations of two ranks, outside of a run."""
    ranks = Ranks.of_process()
    ranks.join(Path())
    many = [torch.full((2, 2), 1.0 + ranks.rank), torch.tensor([10.0])]
    ranks.sum(many)
    assert torch.equal(many[0], torch.full((2, 2), 3.0))
    assert many[1].tolist() == [20.0]
    will = ranks.agree(
        RankVote(15 * ranks.rank, save=ranks.is_first, diverged=False, growth_cap=9.0 if ranks.rank else 5.0)
    )
    assert will == RankVote(15, save=True, diverged=False, growth_cap=5.0)
    assert ranks.agree(RankVote(save=not ranks.is_first)) == RankVote()
    assert ranks.all_gather(["rank", ranks.rank]) == [["rank", 0], ["rank", 1]]
    assert ranks.only_first(lambda: "done", "something") == ("done" if ranks.is_first else None)
    assert ranks.broadcast(ranks.rank + 3) == 3
    ranks.leave(None)


@pytest.fixture
def run_two(start_python, surroundings):
    def call(code, *arguments):
        both = [
            start_python("-c", code, Path(__file__).parent, *arguments, number, environment=surroundings | rank)
            for number, rank in enumerate(joined(2))
        ]
        return [("".join(process.communicate(timeout=120)), process.returncode) for process in both]

    return call


def test_two_ranks_train_like_one_and_record_the_whole_batch(tmp_path, run_two):
    for printed, code in run_two(TWO, tmp_path / "two"):
        assert code == 0, printed
    one = train(tmp_path / "one")
    two = [torch.load(tmp_path / f"two-{rank}.pt", weights_only=True) for rank in range(2)]
    for own, first, second in zip(one, *two, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(own, first, rtol=1e-5, atol=1e-7)
    alone, shared, other = (read_history(tmp_path / name) for name in ("one", "two", "two/ranks/1"))
    recorded = [name for name in alone.names() if name.startswith(("Loss", "Gradients", "Sample", "Guard", "Model"))]
    assert {"Loss/component_odd", "Loss/weight_odd", "Sample/2/loss", "Gradients/second_norm"} <= set(recorded)
    for name in recorded:
        for history in (shared, other):
            assert history[name].values.tolist() == pytest.approx(alone[name].values.tolist(), rel=1e-5), name
    assert not (tmp_path / "two" / "ranks" / "1" / "checkpoints").exists()
    assert read_manifest(tmp_path / "two" / "ranks" / "1").about == {"rank": 1, "ranks": 2}
    facts = read_ranks(tmp_path / "two")
    assert [(one.rank, one.step) for one in facts] == [(0, 4), (1, 4)]
    assert all(one.peak and one.step_ms for one in facts)
    assert json.loads((tmp_path / "two" / "run.json").read_text())["state"] == "finished"


AGAIN = """
import os, sys
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
import torch
from test_ranks import train
weights = train(sys.argv[2], resume_from=4)
torch.save(weights, sys.argv[2] + f"-again-{sys.argv[3]}.pt")
"""


def test_two_ranks_continue_from_an_earlier_checkpoint(tmp_path, run_two):
    folder = tmp_path / "two"
    for code in (TWO, AGAIN):
        for printed, status in run_two(code, folder):
            assert status == 0, printed
    for rank in range(2):
        first, again = (torch.load(tmp_path / f"two{name}-{rank}.pt", weights_only=True) for name in ("", "-again"))
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["abandoned-step_0000000005", "step_0000000004", "step_0000000005"]
    assert [segment["step"] for segment in read_manifest(folder).segments] == [0, 4]
    assert read_history(folder)["Loss/total"].steps.tolist() == [0, 1, 2, 3, 4]
