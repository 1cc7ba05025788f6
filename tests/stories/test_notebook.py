"""A notebook: the example runs from top to bottom, and an interrupted cell is an interrupted run that goes on."""

import json
from pathlib import Path

import pytest

from fieldwatch.record import read_history, read_manifest

pytest.importorskip("ipykernel", reason="no ipykernel here: pip install ipykernel nbclient")
nbclient = pytest.importorskip("nbclient", reason="no nbclient here: pip install ipykernel nbclient")
nbformat = pytest.importorskip("nbformat", reason="no nbformat here: pip install ipykernel nbclient")

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"

# The tenth step interrupts the kernel, as the button of a notebook does: by SIGINT.
INTERRUPTED = """
if interrupting and step.index == 10:
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")

    def of(notebook, **options):
        return nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", **options)

    return of


def pages(cell):
    return [output["data"].get("text/html", "") for output in cell["outputs"] if "data" in output]


def test_the_example_runs_and_every_object_shows_itself(client, tmp_path):
    notebook = nbformat.read(EXAMPLE, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    # The cell with the training is run twice: interrupted, and gone on with.
    (training,) = [cell for cell in notebook.cells if "live(folder" in cell.source]
    again = json.loads(json.dumps(training))
    training.source = "import signal\ninterrupting = True\n" + with_interruption(training.source)
    training.metadata["tags"] = ["raises-exception"]
    at = notebook.cells.index(training) + 1
    notebook.cells.insert(at, nbformat.from_dict({**again, "id": "again"}))
    client(notebook).execute()

    (live,) = pages(training)
    assert ">interrupted</span> 11 of 300 steps" in live
    (live,) = pages(notebook.cells[at])
    assert ">finished</span> 300 of 300 steps" in live
    shown = "".join(page for cell in notebook.cells[at + 1 :] if cell.cell_type == "code" for page in pages(cell))
    for title in ("<b>notebook</b>", "<b>History</b>", "<b>notebook against notebook-slow</b>"):
        assert title in shown
    assert "<script" not in shown
    assert "http" not in shown
    manifest = read_manifest(tmp_path / "notebook")
    assert (manifest.state, [segment["step"] for segment in manifest.segments]) == ("finished", [0, 11])
    assert read_history(tmp_path / "notebook").step == 299


def with_interruption(source):
    body = "".join(f"        {line}\n" for line in INTERRUPTED.strip().splitlines())
    return f"{source}\n{body}"
