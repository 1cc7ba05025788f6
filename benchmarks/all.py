"""Run the benchmarks and rewrite their sections of docs/benchmarks.md, and docs/limits.md, which is made of them.

benchmarks/README.md lists the benchmarks that this leaves out.

python benchmarks/all.py                        all benchmarks of COMMANDS
python benchmarks/all.py overhead               one of them
python benchmarks/all.py --take overhead FILE   write a section from earlier output of the benchmark
"""

import argparse
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
BUNNY = "data/real/video_bunny"
"""32 frames of Big Buck Bunny."""
PLUSH = "data/real/colmap_plush"
"""25 photos of a plush toy."""
SPOT = "data/real/meshes/spot/spot_triangulated.obj"
"""A cow, as a closed mesh."""
ROOM = ["--only", "kitchen", "--size", "480", "--presets", "rooms", "--methods", "tsdf"]
"""A room that no setting was chosen on."""
TEN_MINUTES = ["--steps", "14000", "--threads", "1"]
"""Steps of a normals training that take ten minutes of one core."""
COMMANDS = {
    "install_sizes": ["install_sizes.py"],
    "overhead": ["overhead.py"],
    "limits": ["limits.py"],
    "guard_cost": ["guard_cost.py"],
    "reading": ["reading.py"],
    "report_page": ["report_page.py"],
    "memory_truth": ["memory_truth.py"],
    "memory_cost": ["memory_cost.py"],
    "memory_flat": ["memory_flat.py", "--steps", "1500"],
    "forecast": ["forecast.py", "--seeds", "24"],
    "checkpoint_stall": ["checkpoint_stall.py"],
    "scale": ["scale.py"],
    "many_scenes": ["many_scenes.py"],
    "splats_kernels": ["splats_kernels.py"],
    "rasterizer_before": ["splats_kernels.py", "--source", "933e0269"],
    "splats_cpu": ["splats_cpu.py"],
    "splats_gpu": ["splats_gpu.py"],
    "gpu_kernels": ["gpu_kernels.py"],
    "splats_quality": ["splats_quality.py"],
    "mesh_quality": ["mesh_quality.py"],
    "kitchen_mesh": ["flat_walls.py", *ROOM, "--flags", "--schedule-scale", "0.3"],
    "normals_quality": ["normals_quality.py"],
    "normals_objects": ["normals_quality.py", "--objects", "vase", "jug", "--flags", *TEN_MINUTES],
    "normals_cpu": ["normals_cpu.py", "--threads", "1"],
    "sdf_field": ["sdf_field.py"],
    "sdf_rendering": ["sdf_rendering.py"],
    "video_quality": ["video_quality.py", "--seconds", "180", "--cores", "0", "1", "--data", BUNNY],
    "video_between": ["video_between.py", "--epochs", "80", "--only", "bunny", "occluders", "pan"],
    "video_between_long": ["video_between.py", "--epochs", "240", "--only", "bunny", "--motions", "curved"],
    "video_between_more": ["video_between.py", "--only", "builtin", "rotation", "other"],
    "video_codecs": ["video_codecs.py", "--seconds", "120", "--only", "builtin"],
    "video_codecs_long": ["video_codecs.py", "--seconds", "600", "--only", "bunny", "film"],
    "normals_mesh": ["normals_quality.py", "--mesh", SPOT],
    "normals_poses": ["normals_quality.py", "--mesh", SPOT, "--poses"],
    "splats_photos": ["splats_quality.py", "--scene", PLUSH],
}
HEAD = """# Benchmarks

Run all benchmarks with `make bench`, which rewrites this page, or one section with `python benchmarks/all.py overhead`
(its name in lower case, with underscores). Each section shows the command, the date, the machine and the output. No
benchmark has been run on a GPU yet.
"""


def machine() -> str:
    """Describe the processor, Python and torch."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"model name\s*: (.*)", text)
    name = found.group(1) if found else platform.processor()
    day = datetime.now(UTC).date().isoformat()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{day}, {name}, {os.cpu_count()} cores, no GPU, {versions}"


def section(name: str, printed: str) -> str:
    """Return one section of the page."""
    shown = " ".join(["python", f"benchmarks/{COMMANDS[name][0]}", *COMMANDS[name][1:]])
    body = printed.strip() if printed.lstrip().startswith("|") or "\n|" in printed else f"```\n{printed.strip()}\n```"
    title = name.replace("_", " ").capitalize()
    return f"<!-- {name} -->\n## {title}\n\n`{shown}`: {machine()}\n\n{body}\n<!-- end {name} -->\n"


def put(name: str, printed: str) -> None:
    """Replace or append the section of a benchmark; without output, keep the old section."""
    if not printed.strip():
        print(f"{name} could not be run here: its section of {PAGE} stays as it is")
        return
    page = PAGE.read_text() if PAGE.exists() else HEAD
    pattern = re.compile(rf"<!-- {name} -->.*?<!-- end {name} -->\n", re.DOTALL)
    new = section(name, printed)
    PAGE.write_text(pattern.sub(lambda _: new, page) if pattern.search(page) else f"{page}\n{new}")
    print(f"wrote the section {name} of {PAGE}")


def main() -> None:
    """Run the selected benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*COMMANDS, []], default=[])
    parser.add_argument("--take", nargs=2, metavar=("NAME", "FILE"))
    options = parser.parse_args()
    if options.take:
        put(options.take[0], Path(options.take[1]).read_text())
    else:
        for name in options.names or COMMANDS:
            command = [sys.executable, f"benchmarks/{COMMANDS[name][0]}", *COMMANDS[name][1:]]
            put(name, subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    # docs/limits.md is made of these sections.
    subprocess.run([sys.executable, "docs/generate.py"], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
