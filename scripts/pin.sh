#!/usr/bin/env bash
# Rewrite constraints.txt: one exact pin for every package that the extras below install. Usage: make pin
# Existing pins are kept unless UPGRADE=1. Nothing is installed: pip only resolves. The version of torch is set here.
set -euo pipefail
cd "$(dirname "$0")/.."
torch=2.13.0
report=$(mktemp)
trap 'rm -f "$report"' EXIT
keep=()
if [ -f constraints.txt ] && [ -z "${UPGRADE:-}" ]; then keep=(-c constraints.txt); fi

.venv/bin/pip install --dry-run --quiet --ignore-installed --report "$report" "${keep[@]}" \
    "torch==$torch" hatchling editables -e '.[dev,clip,wandb,mlflow,trackio,ray,viewer,wheel]' 2> >(grep -v 'is neither a file nor a directory' >&2)
.venv/bin/python - "$report" >constraints.txt <<'PYTHON'
import json
import re
import sys

packages = [entry["metadata"] for entry in json.load(open(sys.argv[1]))["install"]]
print("# Every package of the extras dev, clip, wandb, mlflow, trackio, ray, viewer and wheel, exactly. Rewritten by: make pin (all newest: UPGRADE=1 make pin)")
print("# No CUDA packages but the compiler of GPU kernels, for tests: torch's CUDA build names its own, exactly.")
cuda = re.compile(r"nvidia-(?!ml-py|cuda-nvrtc)|cuda-|triton")
for name, version in sorted((re.sub(r"[-_.]+", "-", p["name"]).lower(), p["version"].split("+")[0]) for p in packages):
    if name != "fieldwatch" and not cuda.match(name):
        print(f"{name}=={version}")
PYTHON
echo "constraints.txt: $(grep -c == constraints.txt) packages"
