#!/usr/bin/env bash
# Builds the wheel into a folder (default: dist), with the hashed tools of requirements/build.lock.
#   scripts/dist.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
folder="${1:-dist}"
uv="$(scripts/uv.sh)"
python="$(scripts/python.sh)"
rm -f "$folder"/lorarl-*.whl
"$uv" build -q --wheel --no-create-gitignore --python "$python" --out-dir "$folder" \
  --require-hashes --build-constraints requirements/build.lock
ls "$folder"/lorarl-*.whl
