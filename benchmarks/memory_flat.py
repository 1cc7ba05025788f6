"""Checks whether the memory of a run grows: trains a neural video and accounts for every byte.

    python benchmarks/memory_flat.py                 # 600 steps of the demo, about a minute
    python benchmarks/memory_flat.py --steps 5000

Owners (parameters, gradients, Adam, data) and the tensors that autograd saves must not change by a byte between two
accounts. The whole heap (including the interpreter, and the history and files of the record) may grow by the recorded
values of each step; the slope over the second half shows by how much. The source is searched for loops that empty the
allocator's cache, because they would hide growth.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fieldwatch import Profile
from fieldwatch.recon.pipelines.video import PRESETS, prepare_scene, total_steps, train_video
from fieldwatch.record.memory import read_memory_log

SOURCE = Path(__file__).resolve().parent.parent / "src" / "fieldwatch"
EVERY = 10


def run(steps: int, device: str) -> list[dict[str, object]]:
    """Return the memory accounts of a run of at least so many steps."""
    config = replace(PRESETS["demo"](), device=device)
    scene = prepare_scene(config)
    per_epoch = total_steps(config, scene) // config.epochs
    epochs = -(-steps // per_epoch)
    with tempfile.TemporaryDirectory() as folder:
        often = max(epochs // 5, 1)
        longer = replace(config, epochs=epochs, eval_freq=often, pixel_loss_warmup_epochs=1)
        train_video(longer, scene, Path(folder), profile=Profile(interval=EVERY))
        return read_memory_log(folder)


def drift(sizes: list[int]) -> float:
    """Return by how much the maximum of the second half exceeds that of the first, since batches differ."""
    middle = len(sizes) // 2
    return float(max(sizes[middle:]) - max(sizes[:middle]))


def measure(steps: int, device: str) -> dict[str, float]:
    """Return the figures of the table."""
    accounts = run(steps, device)
    half = accounts[len(accounts) // 2 :]
    owned = [sum(sum(parts.values()) for parts in account["owners"].values()) for account in half]
    saved = [account["saved_peak"] for account in half]
    heap = np.array([account["allocated"] for account in half], np.float64)
    at = np.array([account["step"] for account in half], np.float64)
    slope = np.polyfit(at, heap, 1)[0]
    return {
        "steps": float(accounts[-1]["step"] + 1),
        "accounts": float(len(half)),
        "owned_bytes": float(owned[-1]),
        "owned_drift": drift(owned),
        "saved_drift": drift(saved),
        "heap_bytes": float(heap[-1]),
        "heap_bytes_per_step": float(slope),
        "emptied_caches": float(sum("empty_cache()" in path.read_text() for path in SOURCE.rglob("algorithm.py"))),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options.steps, options.device)
    if options.json:
        print(json.dumps(found))
        return
    print(f"video, demo preset on {options.device}, {found['steps']:.0f} steps, {found['accounts']:.0f} accounts")
    print(f"owners             {found['owned_bytes'] / 2**20:10.2f} MiB   drift {found['owned_drift']:.0f} B, goal 0")
    print(f"saved for backward {'':14}   drift {found['saved_drift']:.0f} B, goal 0")
    print(
        f"heap               {found['heap_bytes'] / 2**20:10.2f} MiB   {found['heap_bytes_per_step']:+.0f} B per step"
    )
    print(f"loops that empty the allocator's cache: {found['emptied_caches']:.0f}")


if __name__ == "__main__":
    main()
