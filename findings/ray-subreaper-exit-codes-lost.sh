#!/usr/bin/env bash
# Ray 2.60: with the raylet as subreaper, each program that fails in a driver, a task or an actor has exit code 0.
#
# RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper=1 is what one sets so that no server keeps a GPU after
# its actor's end. Ray then ignores SIGCHLD in each of its Python processes, the driver too. Linux keeps no exit codes
# for a process that does, and `subprocess` takes 0 for one that it cannot get. So `check=True` raises nothing: a reward
# that runs a completion's tests as a program gives all of them full marks. `multiprocessing` has None for the code.
# Ray's page says that SIGCHLD is ignored, not what becomes of exit codes. Two things hide the cause:
# - where process groups are on as well, the default in 2.60, Ray's log says that groups do the cleaning, and so it goes;
# - signal.getsignal(SIGCHLD) answers SIG_DFL, because Ray sets it beneath Python.
# `signal.signal(signal.SIGCHLD, signal.SIG_DFL)` in the main thread mends it, in each process.
#
# Versions: ray 2.60.0, Python 3.12, Linux.
# Seen (exit code of `exit 3`, of a program killed by SIGKILL, whether check=True raises, of a multiprocessing.Process):
#   by default:  driver, task and actor: 3, -9, raises, 5
#   subreaper:   driver, task and actor: 0, 0, passes, None; getsignal SIG_DFL
#   reset there: actor: 3, -9, raises, 5
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
uv venv -q --python "${PYTHON:-3.12}" .venv
uv pip install -q --python .venv/bin/python ray==2.60.0

cat > codes.py <<'EOF'
import multiprocessing
import os
import signal
import subprocess
import sys

import ray


def codes():
    left = subprocess.run("exit 3", shell=True).returncode
    killed = subprocess.run("kill -KILL $$", shell=True).returncode
    try:
        subprocess.run(["false"], check=True)
        checked = "passes"
    except subprocess.CalledProcessError:
        checked = "raises"
    process = multiprocessing.get_context("spawn").Process(target=os._exit, args=(5,))
    process.start()
    process.join()
    return f"{left}, {killed}, {checked}, {process.exitcode}; getsignal {signal.getsignal(signal.SIGCHLD).name}"


@ray.remote(num_cpus=0)
def task():
    return codes()


@ray.remote(num_cpus=0)
class Actor:
    def codes(self):
        return codes()

    def reset(self):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return codes()


if __name__ == "__main__":
    options = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 1 << 27}
    ray.init("local", num_cpus=1, _temp_dir=sys.argv[1], **options)
    actor = Actor.remote()
    print("driver:", codes())
    print("task:", ray.get(task.remote()))
    print("actor:", ray.get(actor.codes.remote()))
    print("reset:", ray.get(actor.reset.remote()))
EOF

export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled
seen() { # FOLDER [VARIABLE=VALUE]: a busy machine needs several tries until Ray starts
  for try in 1 2 3 4 5; do
    mkdir -p "$work/$1$try"
    if env "${@:2}" .venv/bin/python codes.py "$work/$1$try" 2> said.txt > found.txt; then cat found.txt; return; fi
  done
  tail -5 said.txt >&2
  exit 2
}
unset RAY_process_group_cleanup_enabled RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper
found=$(
  echo "by default"
  seen a
  echo "subreaper"
  seen b RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper=1
)
echo "$found"
right="3, -9, raises, 5; getsignal SIG_DFL" lost="0, 0, passes, None; getsignal SIG_DFL"
expected="by default
driver: $right
task: $right
actor: $right
reset: $right
subreaper
driver: $lost
task: $lost
actor: $lost
reset: $right"
[ "$found" = "$expected" ] || { echo "this has changed; expected: $expected"; exit 1; }
echo "as recorded"
