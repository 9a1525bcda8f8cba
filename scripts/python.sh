#!/usr/bin/env bash
# Prints the path of a Python 3.12: the one that PYTHON names, or one that is found, or one that uv downloads.
set -euo pipefail
cd "$(dirname "$0")/.."

is_python_312() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; }

if [ -n "${PYTHON:-}" ]; then
  is_python_312 "$PYTHON" && { command -v "$PYTHON"; exit; }
  echo "PYTHON: got $PYTHON, expected a Python 3.12. Name one, or unset PYTHON to search for one." >&2; exit 1
fi
for candidate in python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python /usr/local/bin/python3.12; do
  is_python_312 "$candidate" && { command -v "$candidate"; exit; }
done
# Otherwise uv finds or downloads one.
uv="$(scripts/uv.sh)"
"$uv" python find 3.12 2>/dev/null || { "$uv" python install 3.12 >&2 && "$uv" python find 3.12; } ||
  { echo "no Python 3.12 was found. Install one, or name it: PYTHON=/path/to/python3.12 make setup" >&2; exit 1; }
