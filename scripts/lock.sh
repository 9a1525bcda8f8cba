#!/usr/bin/env bash
# Resolves the packages of pyproject.toml into requirements/{cpu,gpu}.lock, with hashes.
set -euo pipefail
cd "$(dirname "$0")/.."
uv="${LORARL_CACHE:-$HOME/.cache/lorarl}/uv/bin/uv"
compile() { # flavour, extras...
  local flavour="$1" extras=(); shift
  for extra in "$@"; do extras+=(--extra "$extra"); done
  "$uv" pip compile -q pyproject.toml --override "requirements/$flavour-overrides.txt" "${extras[@]}" \
    --python .venv/bin/python --no-header --generate-hashes -o "requirements/$flavour.lock"
  echo "requirements/$flavour.lock: $(grep -c '==' "requirements/$flavour.lock") packages"
}
compile cpu cpu operator tracking dev
compile gpu gpu tracking
