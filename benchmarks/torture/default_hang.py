"""Measures how long a hang goes unnoticed under the default timeout.

``python benchmarks/torture/default_hang.py`` runs the trial, which takes about 70 s. With ``--train FOLDER``, the
script is the training that hangs, in its first start only.
"""

import argparse
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path

import torch
from torch import nn

from fieldwatch import Outputs, Run, Saving, Terms
from fieldwatch.monitor import STACKS, Supervisor, read_post_mortems, supervisor_link

AT = 30
DOCUMENTED = 60.0
"""Lower limit in seconds for every known part of a step; docs/reliability.md calls it a minute."""
LATE = 6.0
"""Seconds by which the stacks may be late: the timer restarts once a second, and the supervisor has to read them."""


def noticed_after(folder: Path) -> tuple[str, float]:
    """Let a training hang after some steps, under a supervisor and with the default timeout.

    Returns:
        The cause that the supervisor reported, and the seconds from the last heartbeat to the stacks on the disk.
    """
    command = [sys.executable, str(Path(__file__)), "--train", str(folder)]
    supervisor = Supervisor(lambda _: command, announce=lambda _: None, pause=0.0)
    code = supervisor.run()
    first = supervisor.attempts[0]
    reports = [report for report in read_post_mortems(folder) if report.get("pid") == first.pid]
    if code != 0 or len(supervisor.attempts) != 2 or not reports:
        return f"{first.cause}, then exit code {code}", float("inf")
    stacks = folder / str(reports[0]["place"]) / STACKS
    if not stacks.is_file():
        return f"{first.cause}, without stacks", float("inf")
    made = stacks.stat().st_mtime
    return first.cause, made - datetime.fromisoformat(str(reports[0]["last_sign_of_life"])).timestamp()


def train(folder: Path) -> None:
    """Fit a line; in step 30 of the first start, wait for a lock that is never released."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    told = supervisor_link()
    with Run(folder, saving=Saving(every=5), outputs=Outputs(sinks=(), rules=())) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(2 * AT):
            inputs = torch.randn(8, 2)
            terms = Terms(fit=(1.0, (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            if step.index == AT and told is not None and told.attempt == 1:
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()
            step.update(optimizer)
            time.sleep(0.001)


def main() -> int:
    """Run the trial, or the training that it starts."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--train", type=Path)
    given = reader.parse_args()
    if given.train is not None:
        train(given.train)
        return 0
    with tempfile.TemporaryDirectory() as place:
        cause, seconds = noticed_after(Path(place) / "run")
    print(f"{cause}: its stacks were on the disk {seconds:.1f} s after its last heartbeat")
    return int(cause != "hang" or seconds > DOCUMENTED + LATE)


if __name__ == "__main__":
    sys.exit(main())
