#!/usr/bin/env bash
# Print pip's arguments for the build of torch that fits this machine's GPU driver, and the reason to stderr.
# Usage: scripts/torch_build.sh 2.13.0
set -euo pipefail
torch=torch==$1
index=https://download.pytorch.org/whl

cpu_build() {
    echo "env: torch without CUDA: $1" >&2
    # From the index that pip is configured with if it has the CPU build, else from PyTorch's own.
    if [ -n "${PIP:-}" ] && $PIP install --dry-run --no-deps --ignore-installed "$torch+cpu" >/dev/null 2>&1; then
        echo "$torch+cpu"
    else
        echo "$torch+cpu --extra-index-url $index/cpu"
    fi
}

if [ "$(uname -s)" != Linux ]; then
    echo "env: torch as on PyPI" >&2
    echo "$torch"
    exit
fi
if ! command -v nvidia-smi >/dev/null; then
    cpu_build "there is no nvidia-smi, so no NVIDIA driver"
    exit
fi
# One line per GPU, for example "580.65.06, 8.9". Drivers before 510 do not know compute_cap.
if ! answer=$(nvidia-smi --query-gpu=driver_version,compute_cap --format=csv,noheader 2>&1); then
    if ! answer=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1); then
        cpu_build "nvidia-smi fails ($(head -n 1 <<<"$answer"))"
        exit
    fi
fi
driver=$(head -n 1 <<<"$answer" | cut -d, -f1 | tr -d ' ')
# The oldest GPU decides.
capability=$(cut -d, -s -f2 <<<"$answer" | tr -d ' ' | sort -V | head -n 1)
major=${driver%%.*}
if ! [[ $major =~ ^[0-9]+$ ]]; then
    cpu_build "nvidia-smi reports no GPU ($(head -n 1 <<<"$answer"))"
    exit
fi
# The oldest drivers for CUDA 13 and 12 (NVIDIA's compatibility table); PyPI's build, for CUDA 13.0, has kernels for
# compute capability 7.5 (GeForce RTX 20) and newer, that for CUDA 12.6 also for 5.0 to 7.0.
older_gpu=$([ -n "$capability" ] && [ "$(printf '%s\n7.5\n' "$capability" | sort -V | head -n 1)" != 7.5 ] && echo yes || true)
if [ "$major" -ge 580 ] && [ -z "$older_gpu" ]; then
    echo "env: torch for CUDA 13.0: driver $driver" >&2
    echo "$torch"
elif [ "$major" -ge 525 ]; then
    echo "env: torch for CUDA 12.6: driver $driver${older_gpu:+, GPU of compute capability $capability}" >&2
    echo "$torch+cu126 --extra-index-url $index/cu126"
else
    cpu_build "driver $driver is too old for CUDA 12, which needs 525; install a newer driver, then: make env"
fi
