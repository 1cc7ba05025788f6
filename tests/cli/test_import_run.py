"""fieldwatch import: a run of another tool becomes one that report, health and compare read."""

import pytest


@pytest.fixture
def table(tmp_path):
    """A table of Lightning: the validation loss has rows of its own."""
    path = tmp_path / "logs" / "metrics.csv"
    path.parent.mkdir()
    lines = [f"{step // 50},{step},{1 / (1 + step)}," for step in range(100)]
    lines += [f"{step // 50},{step},,{2 / (1 + step)}" for step in (49, 99)]
    path.write_text("\n".join(("epoch,step,train_loss,val_loss", *lines, "")))
    return path


def test_an_imported_run_is_reported_judged_and_compared(table, tmp_path, fieldwatch, answer):
    before = table.read_bytes()
    got = answer("import", table.parent, "-o", tmp_path / "a")
    assert got["renamed"] == {"train_loss": "Loss/total"}
    assert (got["tool"], got["steps"], got["findings"]) == ("CSV", 100, [])
    assert table.read_bytes() == before
    assert [path.name for path in table.parent.iterdir()] == [table.name]
    code, out, _ = fieldwatch("import", table, "-o", tmp_path / "b", "--map", "val_loss=Eval/loss")
    assert code == 0
    assert "train_loss is recorded as Loss/total" in out
    health = answer("health", tmp_path / "a")
    assert (health["state"], health["findings"]) == ("finished", [])
    account = answer("report", tmp_path / "b")
    assert account["verdict"]["level"] == "healthy"
    assert set(account["series"]) >= {"Loss/total", "Eval/loss", "epoch"}
    compared = answer("compare", tmp_path / "a", tmp_path / "b")
    assert "Loss/total" in str(compared)


def test_several_runs_are_listed_and_one_is_chosen(table, tmp_path, fieldwatch):
    (table.parent / "other.csv").write_text("step,loss\n0,1\n")
    code, _, message = fieldwatch("import", table.parent, "-o", tmp_path / "a")
    assert code == 2
    assert "logs/metrics.csv" in message
    assert "logs/other.csv" in message
    assert not (tmp_path / "a").exists()
    assert fieldwatch("import", table.parent, "-o", tmp_path / "a", "--run", "logs/other.csv")[0] == 0


def test_a_run_without_a_usual_loss_asks_for_it(tmp_path, fieldwatch):
    (tmp_path / "table.csv").write_text("step,energy\n0,1\n1,2\n")
    code, out, _ = fieldwatch("import", tmp_path / "table.csv", "-o", tmp_path / "a")
    assert code == 0
    assert "--map" in out
    assert "energy" in out
    assert "healthy" not in out
