#!/usr/bin/env bash
# Prints the path of uv in $LORARL_CACHE/uv (default ~/.cache/lorarl/uv); installs it there first if it is missing.
set -euo pipefail
folder="${LORARL_CACHE:-$HOME/.cache/lorarl}/uv"
if [ ! -x "$folder/bin/uv" ]; then
  echo "uv: installing it into $folder" >&2
  mkdir -p "$folder" && python3 -m venv "$folder" && "$folder/bin/pip" install -q uv==0.13.9
fi
echo "$folder/bin/uv"
