#!/usr/bin/env bash
# Create .venv with the pinned packages of constraints.txt. Usage: scripts/env.sh [EXTRAS], e.g. scripts/env.sh dev,wandb
# `make env` calls this only when pyproject.toml, constraints.txt or this script changed.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${1:-dev}
log=.venv/install.log
export PIP_CONSTRAINT=$PWD/constraints.txt       # old pip reads this for the build backend too,
export PIP_BUILD_CONSTRAINT=$PWD/constraints.txt # new pip (>= 25.3) this

# Find the first Python that starts, is new enough and can create a virtual environment.
usable() { "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
find_python() {
    local name
    for name in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if usable "$name"; then echo "$name" && return; fi
    done
    echo "env: found no Python >= 3.11 with venv and ensurepip (looked for: ${PYTHON:-python3.11 python3.12 python3.13 python3})." >&2
    echo "env: install one (Debian, Ubuntu: apt install python3 python3-venv) or name it: make env PYTHON=/path/to/python" >&2
    return 1
}

# PyPI's torch for Linux includes gigabytes of CUDA libraries. Without a GPU, request the CPU build explicitly: from the
# index that pip is configured with if it has one, else from PyTorch's own. TORCH=torch overrides this.
has_nvidia_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }
wants_cpu_build() { [ "$(uname -s)" = Linux ] && ! has_nvidia_gpu; }

install() {
    local torch
    torch=torch==$(sed -n 's/^torch==//p' constraints.txt)
    local request=("${TORCH:-$torch}")
    if [ -z "${TORCH:-}" ] && wants_cpu_build; then
        request=("$torch+cpu")
        if ! .venv/bin/pip install --dry-run --no-deps --ignore-installed "$torch+cpu" >>"$log" 2>&1; then
            request+=(--extra-index-url https://download.pytorch.org/whl/cpu)
        fi
    fi
    echo "env: installing .[$extras] with ${request[*]} into .venv (minutes the first time; details in $log)"
    .venv/bin/pip install -e ".[$extras]" "${request[@]}" >>"$log" 2>&1
}

if ! { [ -x .venv/bin/python ] && usable .venv/bin/python; }; then
    python=$(find_python)
    rm -rf .venv
    "$python" -m venv .venv
fi
: >"$log"
if ! install; then
    tail -n 25 "$log" >&2
    echo "env: the installation failed; the last lines of $log are above. Try again with: make env" >&2
    echo "env: (torch's CPU build is on https://download.pytorch.org; for PyPI's CUDA build: make env TORCH=torch)" >&2
    exit 1
fi
echo "env: ready ($(.venv/bin/python -c 'import sys, torch; print("Python %d.%d" % sys.version_info[:2] + ", torch " + torch.__version__)'))"
