#!/usr/bin/env bash
# Checks to run before a commit, 90 seconds on two cores: lint, formatting, import contracts, the types of the changed
# files, and every test that is not slow. `make quick` calls this script. Usage: scripts/quick.sh WORKERS [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
workers=$1
shift

.venv/bin/ruff check .
.venv/bin/ruff format --check --quiet .
.venv/bin/lint-imports --no-logo

base=$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
mapfile -t changed < <(git diff --name-only --diff-filter=d "$base" -- 'src/*.py')
if ((${#changed[@]})); then
    .venv/bin/pyright "${changed[@]}"
fi

exec .venv/bin/python -m pytest -q -n "$workers" --dist worksteal -m "not slow and not machine" "$@"
