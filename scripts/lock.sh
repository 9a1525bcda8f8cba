#!/usr/bin/env bash
# Resolves the packages of pyproject.toml into requirements/*.lock, with hashes: cpu (what the tests run with) and gpu; and those that only
# images have: operator and trainer-cpu, in the versions of cpu.lock, and build.
set -euo pipefail
cd "$(dirname "$0")/.."
uv="${LORARL_CACHE:-$HOME/.cache/lorarl}/uv/bin/uv"
compile() { # name, options and sources of uv pip compile...
  local lock="requirements/$1.lock"; shift
  "$uv" pip compile -q --python .venv/bin/python --no-header --generate-hashes -o "$lock" "$@"
  echo "$lock: $(grep -c '==' "$lock") packages"
}
compile cpu pyproject.toml --override requirements/cpu-overrides.txt --extra cpu --extra operator --extra tracking --extra dev
compile gpu pyproject.toml --override requirements/gpu-overrides.txt --extra gpu --extra tracking
compile operator pyproject.toml --constraint requirements/cpu.lock --extra operator
compile trainer-cpu pyproject.toml --override requirements/cpu-overrides.txt --override requirements/trainer-cpu-overrides.txt \
  --constraint requirements/cpu.lock --extra cpu --extra tracking
compile build requirements/build.in
