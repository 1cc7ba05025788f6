"""A step of a stranger's loop, made again: what made it not finite is named with module, file and line."""

import pytest
import torch

from fieldwatch.cli import main
from fieldwatch.record import checkpoint_folders

BAD = 17


def line_of(loop, mark):
    """The number of the line that ends with a comment."""
    return next(k for k, text in enumerate(loop.read_text().splitlines(), 1) if text.endswith(f"# {mark}"))


def innermost(bad):
    return bad["stack"][0]["file"], bad["stack"][0]["line"]


@pytest.mark.parametrize(
    "case",
    [("log", "aten.log", "forward"), ("half", "aten.pow", "forward"), ("sqrt", "aten.div", "backward")],
)
def test_the_first_operation_that_is_not_finite_is_found(case, train, replay, loop, digest):
    fault, operation, phase = case
    run = train(fault)
    before = digest(run)
    found = replay(loop, run, "--step", BAD, "--", run, fault)
    first = found["trace"]["first"]
    assert first["operation"] == operation
    assert first["phase"] == phase
    assert first["module"] == "model.heads.density"
    assert innermost(first) == (str(loop), line_of(loop, fault.upper()))
    # The stack begins where the loop does.
    assert [line["function"] for line in first["stack"]][-1] == "<module>"
    assert any(name.startswith("gradient of ") for name in first["reached"])
    assert found["equality"]["equal"]
    assert found["repeats"]["differing"] == []
    assert digest(run) == before


def test_a_backward_pass_is_traced_to_its_forward_line_though_the_loss_is_finite(train, replay, loop):
    run = train("sqrt")
    found = replay(loop, run, "--step", BAD, "--", run, "sqrt")
    first = found["trace"]["first"]
    assert first["node"] == "SqrtBackward0"
    assert first["reached"] == ["gradient of model.heads.density.scale"]
    assert [row["loss"] for row in found["passes"][0]["losses"]] == [pytest.approx(0.0, abs=10)] * 2


def test_a_mask_of_infinities_is_no_finding(train, replay, loop):
    run = train("mask")
    found = replay(loop, run, "--step", BAD, "--", run, "mask")
    assert found["trace"]["first"] is None
    assert [bad["on_purpose"] for bad in found["trace"]["others"]] == [True]


def test_native_code_is_named_by_the_line_that_allocated_what_it_wrote(train, replay, loop):
    run = train("native")
    first = replay(loop, run, "--step", BAD, "--", run, "native")["trace"]["first"]
    assert first["operation"].endswith(f"{loop}:{line_of(loop, 'NATIVE')}")


def test_a_step_that_raises_is_shown_with_its_line(train, replay, loop):
    with pytest.raises(RuntimeError, match="cholesky"):
        train("raise")
    run = loop.parent / "runs" / "raise"
    found = replay(loop, run, "--step", BAD, "--do", "lr*=0.1", "--", run, "raise")
    error = found["trace"]["error"]
    assert innermost(error) == (str(loop), line_of(loop, "RAISE"))
    assert error["step"] == BAD
    # Every pass is begun anew, and ends in the same way.
    assert [one["error"]["type"] for one in found["passes"]] == [error["type"]] * 2


def test_a_run_killed_without_warning_can_be_looked_into(train_and_die, replay, loop, digest):
    run = train_and_die()
    before = digest(run)
    found = replay(loop, run, "--step", 25, "--", run, "kill")
    assert found["start"] in (10, 20)  # that of step 20 may have been half written
    assert found["equality"]["equal"]
    assert found["equality"]["last"] == 24  # step 25 has no row: it never ended
    assert digest(run) == before


def test_samples_terms_groups_and_memory_of_a_step(train, replay, loop):
    run = train("none")
    found = replay(loop, run, "--step", 12, "--", run, "none")
    losses = [row["loss"] for row in found["samples"]]
    assert losses == sorted(losses, reverse=True)
    assert sum(row["share"] for row in found["samples"]) == pytest.approx(1)
    (terms,) = found["terms"]["groups"]
    norms = {row["term"]: row["norm"] for row in terms["terms"]}
    assert set(norms) == {"fit", "small"}
    assert terms["norm"] == pytest.approx(found["passes"][0]["gradient_norm"], rel=1e-5)
    (group,) = found["groups"]
    assert sum(group["before"]["counts"]) == sum(group["after"]["counts"]) == group["before"]["entries"]
    assert group["change"] > 0
    memory = found["trace"]["memory"]
    assert 0 < memory["peak"] <= memory["allocated"]
    assert sum(row["at_peak"] for row in memory["lines"]) == memory["peak"]
    assert {row["phase"] for row in memory["lines"]} >= {"forward", "backward", "optimizer"}


def test_a_loop_in_the_plain_form_is_looked_into_just_as_well(train, replay, loop):
    text = loop.read_text().replace(
        "        step.backward(objective, torch.rand(16, 2), samples=names)\n",
        "        output = objective(torch.rand(16, 2))\n        optimizer.zero_grad()\n"
        "        output.terms.total.backward()\n        step.observe(output.terms, names, output.sample_loss)\n",
    )
    loop.write_text(text)
    run = train("sqrt")
    found = replay(loop, run, "--step", BAD, "--without", "small", "--", run, "sqrt")
    assert innermost(found["trace"]["first"]) == (str(loop), line_of(loop, "SQRT"))
    assert {row["term"] for row in found["terms"]["groups"][0]["terms"]} == {"fit", "small"}
    plain, without = found["passes"]
    assert without["losses"][0]["loss"] == pytest.approx(plain["terms"]["fit"])
    assert found["equality"]["equal"]


def test_interventions_change_what_they_should_and_nothing_else(train, replay, loop):
    run = train("none")
    flags = ["--do", "lr*=0.5", "--do", "lr*=2,clip=0.001", "--do", "weight.small*=10", "--without", "small"]
    found = replay(loop, run, "--step", 12, *flags, "--dtype", "float64", "--ahead", 2, "--", run, "none")
    plain, half, clipped, heavier, without, double = found["passes"]
    loss = {one["name"]: one["losses"][0]["loss"] for one in found["passes"]}
    assert loss["lr*=0.5"] == loss["as trained"]
    assert half["update"]["model"] == pytest.approx(plain["update"]["model"] / 2, rel=1e-4)
    assert clipped["gradient_norm"] == plain["gradient_norm"]
    assert half["losses"][1] != plain["losses"][1]
    assert without["losses"][0]["loss"] == pytest.approx(plain["terms"]["fit"])
    small = 0.01 * plain["terms"]["small"]
    assert heavier["losses"][0]["loss"] == pytest.approx(plain["losses"][0]["loss"] + 9 * small)
    assert double["losses"][0]["loss"] == pytest.approx(plain["losses"][0]["loss"], rel=1e-5)
    assert double["losses"][0]["loss"] != plain["losses"][0]["loss"]
    assert [len(one["losses"]) for one in found["passes"]] == [3] * 6
    assert [one["error"] for one in found["passes"]] == [None] * 6


def test_another_step_is_compared(train, replay, loop):
    run = train("log")
    found = replay(loop, run, "--step", 12, "--against", BAD, "--", run, "log")
    assert found["trace"]["first"] is None
    assert found["against"]["trace"]["first"]["operation"] == "aten.log"


def test_a_changed_loop_is_found_out(train, replay, loop):
    run = train("none")
    loop.write_text(loop.read_text().replace("small=(0.01,", "small=(0.01 if run.step_index < 13 else 0.02,"))
    found = replay(loop, run, "--step", 15, "--", run, "none")
    assert found["equality"]["ended"]["step"] == 13
    assert found["equality"]["reasons"]
    assert "Loss/total" in [row["metric"] for row in found["equality"]["ended"]["values"]]


def test_state_that_is_not_tracked_is_found_out(train, replay, loop):
    run = train("none")
    text = loop.read_text().replace("torch.rand(16, 2), samples", "torch.rand(16, 2, generator=source), samples")
    loop.write_text(text.replace("names = [", "source = torch.Generator().manual_seed(1)\nnames = ["))
    found = replay(loop, run, "--step", 15, "--", run, "none")
    assert found["equality"]["ended"]["step"] == 10
    assert found["repeats"]["differing"]


@pytest.mark.parametrize(
    "case",
    [
        (["--step", 5, "--start", 5], "10, 20, 30"),
        (["--step", 30], "0 to 29"),
        (["--step", 12, "--start", 20], "10, 20, 30"),
        (["--step", 12, "--do", "lr~1"], "--do"),
        (["--step", 12, "--do", "speed=1"], "weight_decay"),
        (["--step", 12, "--without", "color"], "fit, small"),
        (["--step", 12, "--against", 99], "0 to 29"),
        (["--step", 12, "--ahead", -1], "--ahead"),
    ],
)
def test_what_cannot_be_replayed_is_refused(case, train, loop, tmp_path, capsys):
    words, named = case
    run = train("none")
    before = sorted(tmp_path.iterdir())
    line = [loop, run, *words, "--out", tmp_path / "out", "--", run, "none"]
    assert main(["replay", *map(str, line)]) == 2
    assert named in " ".join(capsys.readouterr().err.split())
    assert sorted(tmp_path.iterdir()) == before


def test_paths_that_do_not_fit_are_refused(train, loop, tmp_path, capsys, digest):
    run = train("none")
    other = tmp_path / "other"
    for words, named in (
        ([run, "--step", 12], str(loop)),
        ([tmp_path / "missing.py", run, "--step", 12], "missing.py"),
        ([loop, tmp_path, "--step", 12], str(tmp_path)),
        ([loop, run, "--step", 12, "--", other, "none"], str(other)),
        ([loop, run, "--step", 12, "--out", run / "inside", "--", run, "none"], "inside"),
        ([loop, "--step", 12], "script"),
    ):
        before = digest(run)
        assert main(["replay", *map(str, words)]) == 2, words
        assert named in " ".join(capsys.readouterr().err.split())
        assert digest(run) == before
    assert not other.exists()


@pytest.mark.parametrize("step", [0, 5])
def test_a_step_before_the_first_checkpoint_is_reached_from_the_beginning(train, replay, loop, digest, step):
    run = train("none")
    before = digest(run)
    found = replay(loop, run, "--step", step, "--do", "lr*=0.1", "--", run, "none")
    assert (found["start"], found["from_checkpoint"]) == (0, False)
    equality = found["equality"]
    assert equality["equal"]
    assert (equality["first"], equality["last"]) == (0, step + 1)
    assert found["repeats"]["differing"] == []
    as_trained, slower = found["passes"]
    assert as_trained["losses"][0] == slower["losses"][0]
    assert as_trained["losses"][1] != slower["losses"][1]
    assert digest(run) == before


def test_steps_may_be_compared_from_the_beginning(train, replay, loop):
    run = train("none")
    found = replay(loop, run, "--step", 12, "--start", 0, "--", run, "none")
    assert (found["equality"]["first"], found["equality"]["last"]) == (0, 13)
    assert [row["step"] for row in found["equality"]["checkpoints"]] == [10]


def test_an_exception_before_the_first_checkpoint_is_met_in_every_pass(train, replay, loop):
    loop.write_text(loop.read_text().replace("run.step_index == 17", "run.step_index == 3"))
    with pytest.raises(torch.linalg.LinAlgError):
        train("raise")
    run = loop.parent / "runs" / "raise"
    found = replay(loop, run, "--step", 3, "--do", "lr*=0.1", "--", run, "raise")
    assert found["trace"]["error"]["stack"][0]["line"] == line_of(loop, "RAISE")
    assert [one["error"]["step"] for one in found["passes"]] == [3, 3]
    assert found["equality"]["steps"] == 3


def test_a_loop_that_never_resumes_can_be_looked_into(train, replay, loop):
    loop.write_text(loop.read_text().replace("    run.resume()\n", "").replace("every=10, keep=", "every=None, keep="))
    run = train("log")
    assert [path.name for path in checkpoint_folders(run)] == ["step_0000000030"]
    found = replay(loop, run, "--step", BAD, "--", run, "log")
    assert innermost(found["trace"]["first"]) == (str(loop), line_of(loop, "LOG"))
    assert found["equality"]["equal"]


def test_a_damaged_checkpoint_is_passed_over_and_left_as_it_is(train, replay, loop, digest):
    run = train("none")
    newest = checkpoint_folders(run)[1]
    assert newest.name.endswith("20")
    data = newest / "tensors.safetensors"
    data.write_bytes(data.read_bytes()[:-8] + b"damaged!")
    before = digest(run)
    assert replay(loop, run, "--step", 22, "--", run, "none")["start"] == 10
    assert digest(run) == before
