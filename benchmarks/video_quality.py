"""Quality at equal training time: every video network on one clip, on one core each, with references without a network.

Each network trains with its own preset without the semantic head, for as many whole epochs as fit into the time
(measured beforehand on a few steps); its schedule ends with that time. Prints a Markdown table.

    python benchmarks/video_quality.py --data data/real/video_bunny --seconds 320
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from fieldwatch import Checkpoints
from fieldwatch.recon.pipelines.video import PRESETS, VideoConfig, prepare_scene, total_steps, train_video
from fieldwatch.record import read_history

NETWORKS = ("literal", "dual", "hnerv", "nerv", "small")
LABELS = {
    "literal": "dual, literal (resized)",
    "dual": "dual, exact geometry",
    "hnerv": "HNeRV (encodes the held-out frame itself)",
    "nerv": "NeRV",
    "small": "grid",
}
REFERENCES = {
    "neighbor_average": "mean of both neighbors",
    "copy_previous": "previous frame",
    "mean_frame": "mean frame",
}


def config_for(name: str, data: Path | None, epochs: int) -> VideoConfig:
    """Return a preset without its semantic head, evaluated at the end only."""
    return replace(
        PRESETS[name](),
        data=data,
        data_split="7_7_8",
        clip_loss_weight=0.0,
        teacher="descriptor",
        threads=1,
        epochs=epochs,
        eval_freq=max(epochs, 1),
        checkpoint_epochs=epochs,
        attribute_every=0,
    )


def step_seconds(name: str, data: Path | None) -> tuple[float, int]:
    """Return the CPU seconds per step after the first few, independent of other load, and the steps per epoch."""
    config = config_for(name, data, 1)
    scene = prepare_scene(config)
    steps = total_steps(config, scene)
    with tempfile.TemporaryDirectory() as folder:
        wall = time.monotonic()
        used = time.process_time()
        train_video(config, scene, Path(folder) / "probe", sinks=())
        share = (time.process_time() - used) / (time.monotonic() - wall)
        times = read_history(Path(folder) / "probe")["Time/step"].values[2:]
    return float(sorted(times)[len(times) // 2]) / 1e3 * share, steps


def measure(name: str, data: Path | None, seconds: float) -> dict[str, float | str]:
    """Train one network for the given time, and score it."""
    torch.set_num_threads(1)
    per_step, epoch_steps = step_seconds(name, data)
    config = config_for(name, data, max(int(seconds / (per_step * epoch_steps)), 1))
    scene = prepare_scene(config)
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        outcome = train_video(config, scene, Path(folder) / "run", sinks=())
        took = time.process_time() - started
        model = Checkpoints(Path(folder) / "run" / "checkpoints").read("last")["model"]
    metrics = outcome.evaluation.metrics if outcome.evaluation else {}
    return {
        "name": name,
        "parameters": sum(tensor.numel() for tensor in model.values()),
        "steps": config.epochs * epoch_steps,
        "seconds": took,
        "milliseconds": took * 1e3 / (config.epochs * epoch_steps),
        "train": metrics["Eval/Pooled/train_psnr"],
        "val": metrics["Eval/Pooled/val_psnr"],
    } | {key: value for key, value in scene.references.items() if key.startswith("Reference/")}


def in_own_process(name: str, core: int, options: argparse.Namespace) -> dict[str, float | str]:
    """Measure one network in a separate process, on one core."""
    command = [sys.executable, __file__, "--one", name, "--seconds", str(options.seconds)]
    command += ["--data", str(options.data)] if options.data else []
    pinned = {"preexec_fn": lambda: os.sched_setaffinity(0, {core})} if hasattr(os, "sched_setaffinity") else {}
    done = subprocess.run(command, capture_output=True, text=True, check=True, **pinned)
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict[str, float | str]], seconds: float) -> str:
    """Format the Markdown table, with the references below the networks."""
    lines = [
        f"About {seconds:.0f} CPU seconds of training and one thread for each network; pooled frame PSNR in dB.",
        "",
        "| | parameters | CPU ms/step | steps | CPU seconds | train | held out |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {LABELS[str(row['name'])]} | {row['parameters'] / 1e6:.2f} M | {row['milliseconds']:.0f} "
        f"| {row['steps']:.0f} | {row['seconds']:.0f} | {row['train']:.2f} | {row['val']:.2f} |"
        for row in rows
    ]
    lines += [
        f"| *{label}* | | | | | {rows[0][f'Reference/train_{key}']:.2f} | {rows[0][f'Reference/val_{key}']:.2f} |"
        for key, label in REFERENCES.items()
    ]
    by_name = {row["name"]: row for row in rows}
    if {"small", "literal"} <= by_name.keys():
        gain = [by_name["small"][part] - by_name["literal"][part] for part in ("train", "val")]
        lines += ["", f"Grid compared with literal: {gain[0]:+.2f} dB train, {gain[1]:+.2f} dB held out."]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of frames or video file; by default the built-in clip")
    parser.add_argument("--seconds", type=float, default=320, help="training time of each network")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument(
        "--cores", nargs="+", type=int, default=[0], help="cores to use, with one network at a time on each"
    )
    parser.add_argument("--one", choices=NETWORKS, help="measure one network here and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.data, options.seconds)))
        return
    free = list(options.cores)

    def run(name: str) -> dict[str, float | str]:
        core = free.pop()
        try:
            return in_own_process(name, core, options)
        finally:
            free.append(core)

    with ThreadPoolExecutor(len(free)) as pool:
        rows = list(pool.map(run, options.networks))
    print(table(rows, options.seconds))


if __name__ == "__main__":
    main()
