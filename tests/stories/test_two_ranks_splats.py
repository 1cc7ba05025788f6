"""Two processes share the views of each step: the losses and the growth of one process that draws them all."""

import pytest

from fieldwatch import read_history
from fieldwatch.cli import main
from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.data.colmap import write_colmap

WORDS = (
    "--views-per-step 2 --schedule-scale 0.003 --coarse-iterations 12000 --test-iterations 12000 --held-out 4 "
    "-r density --prune-below 0.05 --growth-pull 4e-4 --exposure --mip --degree 1 --turntable 0 --threads 1 "
    "--device cpu"
).split()


def test_two_processes_train_and_grow_as_one_does(tmp_path, capsys, run_two):
    write_colmap(tmp_path / "photos", solid_photos(views=8, size=24, points=80, samples=1))
    words = ["train", "splats", "--data", str(tmp_path / "photos"), *WORDS]
    assert main([*words, "--out", str(tmp_path / "one")]) in (0, 1), capsys.readouterr().err

    printed, codes = run_two(*words, "--out", tmp_path / "two")
    assert codes == [0, 0], printed

    one, two, second = (read_history(tmp_path / place) for place in ("one", "two", "two/ranks/1"))
    losses = one["Loss/total"].values.tolist()
    assert len(losses) == 36
    assert two["Loss/total"].values.tolist() == pytest.approx(losses, rel=1e-5)
    assert second["Loss/total"].values.tolist() == two["Loss/total"].values.tolist()
    for kind in ("growth", "prune"):
        counts = [[(event["step"], event["after"]) for event in run.events(kind)] for run in (one, two, second)]
        assert counts[0] == counts[1] == counts[2] != []
    for name in ("Train/PSNR", "Model/work", "Test/psnr"):
        assert two[name].values.tolist() == pytest.approx(one[name].values.tolist(), rel=1e-5)
    assert "Test/psnr" not in second  # the first process alone evaluates and writes
    products = [sorted(path.name for path in (tmp_path / run / "products").iterdir()) for run in ("one", "two")]
    assert products[0] == products[1]
    assert not (tmp_path / "two" / "ranks" / "1" / "products").exists()
