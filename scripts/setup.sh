#!/usr/bin/env bash
# Makes .venv from a lock, unless it is up to date: Python 3.12, the CPU stack (or, with GPU=1, the GPU stack) and
# lorarl itself, editable. The GPU stack compiles Transformer Engine's torch extension, which needs a C++ compiler
# and about a quarter of an hour.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/lorarl-setup.sha256
# A .venv for GPUs stays one, so that `make test` on a GPU machine does not turn it into one for CPUs. GPU=0 does.
if [ -z "${GPU:-}" ] && [ -f .venv/lorarl-gpu ]; then GPU=1; fi
flavour=cpu
if [ "${GPU:-0}" != 0 ]; then flavour=gpu; fi
lock="requirements/$flavour.lock" installer=trainer_image/lorarl_trainer/install/install.py
# The folder counts too: after a copy or a move, .venv would run the programs and the lorarl of the old checkout.
want="$({ pwd -P; cat "$lock" "$installer" pyproject.toml scripts/setup.sh scripts/uv.sh; } | sha256sum)"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && exit 0

python="$(scripts/python.sh)"
uv="$(scripts/uv.sh)"
echo "setup: $python, $(grep -c '==' "$lock") locked packages into .venv" >&2
export UV_LINK_MODE="${UV_LINK_MODE:-hardlink}"
added="$(cat .venv/lorarl-added.txt 2>/dev/null || true)" # by `lorarl env add`
"$uv" venv -q --clear --python "$python" .venv
if [ -n "$added" ]; then echo "$added" > .venv/lorarl-added.txt; fi
# The installer is that of `lorarl setup`. It needs no packages.
export PATH="$(dirname "$uv"):$PATH"
install() { PYTHONPATH=trainer_image .venv/bin/python -m lorarl_trainer.install "$@"; }
install "$flavour" "$lock"
"$uv" pip install -q --python .venv/bin/python --no-deps -e .
install added
if [ "$flavour" = gpu ]; then touch .venv/lorarl-gpu; fi
echo "$want" > "$stamp"
echo "setup: done. Next: . .venv/bin/activate, and then lorarl init for your own task, or make demo for a first look" >&2
