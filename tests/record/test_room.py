import re
import subprocess
import sys

import pytest

import fieldwatch.record
from fieldwatch.record import DAMAGED, Manifest, NotARun, read_history, read_manifest, sinks


def test_record_and_its_sinks_do_not_import_torch():
    code = "import fieldwatch.record.sinks, sys; print(*(name in sys.modules for name in ('torch', 'wandb', 'mlflow')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False"] * 3


@pytest.mark.parametrize("room", [fieldwatch.record, sinks])
def test_every_public_name_is_there_and_listed_once(room):
    assert len(set(room.__all__)) == len(room.__all__)
    assert all(hasattr(room, name) for name in room.__all__)


def test_declared_windows_come_from_the_run_file(tmp_path):
    Manifest(config={}, windows={"normal": (100, 499), "late": (500, None)}).write(tmp_path)
    history = read_history(tmp_path)
    assert history.windows == {"normal": (100, 499), "late": (500, sys.maxsize)}
    assert [history.phase_start(step) for step in (0, 100, 499, 500, 10_000)] == [0, 100, 100, 500, 500]


def test_run_file_that_is_not_ours_is_told(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(NotARun, match=re.escape(str(tmp_path))):
        read_manifest(tmp_path)
    (event,) = read_history(tmp_path).events(DAMAGED)  # the rows are still read
    assert (event["file"], event["lines"]) == ("run.json", 0)
