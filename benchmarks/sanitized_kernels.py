"""Run the tests of the GPU kernels with their emulation under address and undefined-behavior sanitizers.

    python benchmarks/sanitized_kernels.py

The tests compare random inputs, no input, one, odd sizes and more pairs than fit, in three orders of blocks and
threads. Here, every access beyond a tensor, an array or shared memory stops them, and shared memory begins with
senseless numbers. A planted access beyond a tensor must be found first. No GPU is needed; it takes minutes.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("tests/recon/render/gpu", "tests/fake_cuda/test_normals_kernels.py")
WITHOUT = ("compil", "architecture", "nvrtc")
"""Parts of names of tests that run no kernel, but compile for GPUs."""
PLANTED = """
import sys
sys.path.insert(0, "tests")
import torch
from fake_cuda.conftest import pretended_gpu
from fieldwatch.recon.render.gpu import KernelFile
from pathlib import Path
with pretended_gpu():
    KernelFile("machine.cu", Path("tests/recon/render/gpu")).launch("beyond", 1, torch.zeros({length}, device="cuda"))
"""


def sanitized_environment() -> dict[str, str]:
    """Return an environment in which Python loads the sanitizers first, and the emulation is compiled with them."""
    # libstdc++ too: the sanitizers look up its functions when they start.
    names = ("libasan.so", "libubsan.so", "libstdc++.so")
    found = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names]
    missing = [name for name, path in zip(names, found, strict=True) if not Path(path).is_absolute()]
    if missing:
        sys.exit(
            f"expected the sanitizers of g++, but {', '.join(missing)} is not installed: install libasan and libubsan"
        )
    return os.environ | {
        "LD_PRELOAD": " ".join(found),
        # Python and torch keep memory until the end.
        "ASAN_OPTIONS": "detect_leaks=0:strict_init_order=0",
        "PYTHONPATH": str(ROOT / "src"),
        "FIELDWATCH_SANITIZED_KERNELS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def planted(length: int, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a kernel that reads 32 numbers, on a tensor of ``length``."""
    words = [sys.executable, "-c", PLANTED.format(length=length)]
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def main() -> int:
    """Plant, then run the tests; return the exit status of the tests."""
    parser = argparse.ArgumentParser(description="Run the kernels' tests under sanitizers.")
    parser.add_argument("tests", nargs="*", default=list(TESTS), help="files or folders of tests")
    chosen = parser.parse_args().tests
    environment = sanitized_environment()
    right, wrong = planted(32, environment), planted(31, environment)
    if right.returncode != 0 or "heap-buffer-overflow" not in wrong.stderr:
        sys.exit(f"expected the sanitizers to find a planted access beyond a tensor, and nothing else:\n{right.stderr}")
    print("a planted access beyond a tensor was found", flush=True)
    skipped = " and ".join(f"not {part}" for part in WITHOUT)
    # Timeouts of single tests are those without sanitizers.
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "1200", "-k", skipped, *chosen]
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
