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

# PyPI's torch for Linux includes gigabytes of CUDA libraries, and needs a recent driver: ask the driver first.
# TORCH=torch, or any other requirement, overrides the choice.
install() {
    local request
    if [ -n "${TORCH:-}" ]; then
        request=("$TORCH")
    else
        read -ra request <<<"$(PIP=.venv/bin/pip scripts/torch_build.sh "$(sed -n 's/^torch==//p' constraints.txt)")"
    fi
    # A CUDA build serves a GPU, where gsplat renders splats if our own kernels do not work.
    [[ ${request[0]} == *+cpu || $(uname -s) != Linux || ,$extras, == *,gpu,* ]] || extras=$extras,gpu
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
if [[ ,$extras, == *,gpu,* ]] && ! command -v nvcc >/dev/null; then
    echo "env: there is no nvcc, which gsplat needs; splats do not need gsplat: our own kernels render them without nvcc" >&2
fi
echo "env: ready ($(.venv/bin/python -c 'import sys, torch; print("Python %d.%d" % sys.version_info[:2] + ", torch " + torch.__version__)'))"
