"""Starts one loop: `python start.py SCRIPT [ARGUMENTS]`; kills it at the step LOOP_KILL, if that is set."""

import hashlib
import os
import random
import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fieldwatch.run.session import Session


def finish(**modules: nn.Module) -> None:
    """Write a hash of the trained weights to the file WEIGHTS: the loops call it at their end."""
    found = hashlib.sha256()
    for name, module in sorted(modules.items()):
        for key, value in sorted(module.state_dict().items()):
            found.update(f"{name}.{key}".encode())
            found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    Path("WEIGHTS").write_text(found.hexdigest())


def kill_at(step: int) -> None:
    """Kill this process at the end of a step, some steps after a checkpoint."""
    end_step = Session.end_step

    def end(session: Session) -> object:
        index = session.log.step_index
        if index == step:
            os.kill(os.getpid(), 9)
        decision = end_step(session)
        if index == step - 3 and os.environ["LOOP_SAVES"] == "1":
            session.save()
        return decision

    Session.end_step = end  # pyright: ignore[reportAttributeAccessIssue]  the program ends before anybody notices


def main() -> None:
    """Run the script with fixed seeds."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for seeded in (random.seed, np.random.seed, torch.manual_seed):
        seeded(0)
    if "LOOP_KILL" in os.environ:
        kill_at(int(os.environ["LOOP_KILL"]))
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    # Loops import `finish` from here: they must not import a second copy.
    sys.modules["start"] = sys.modules["__main__"]
    main()
