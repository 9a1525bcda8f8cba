#!/usr/bin/env bash
# Ray 2.60: what an actor starts in a session of its own outlives a killed actor, also with the raylet as subreaper.
#
# Ray's page on user-spawned processes calls RAY_process_group_cleanup_enabled off by default, and only children certain
# to end. In 2.60 it is on. So grandchildren and orphans of a double fork, as with nohup, end too, after ray.kill and
# after a SIGKILL as the kernel sends it for memory. What has left the group by setsid does not:
# - a child with start_new_session=True, as one starts a server so as to end it with killpg, ends at ray.kill, but stays
#   after the SIGKILL;
# - once its own parent has ended, it stays both times. So a daemon keeps its GPU, after ray.shutdown() too.
# RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper=1, which the page says works after crashes, does not
# help after the SIGKILL: groups go first. It takes RAY_process_group_cleanup_enabled=0 beside it. Then all ends, and
# exit codes are lost: ray-subreaper-exit-codes-lost.sh.
#
# Versions: ray 2.60.0, Python 3.12, Linux.
# Seen 25 s after the actor's end (child, grandchild, orphan, child's session, orphan's session):
#   by default:             ray.kill: ended, ended, ended, ended, runs    SIGKILL: ended, ended, ended, runs, runs
#   groups off:             ray.kill: ended, runs, runs, ended, runs      SIGKILL: runs, runs, runs, runs, runs
#   subreaper:              ray.kill: ended, ended, ended, ended, ended   SIGKILL: ended, ended, ended, runs, runs
#   subreaper, groups off:  ray.kill: ended, ended, ended, ended, ended   SIGKILL: ended, ended, ended, ended, ended
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
uv venv -q --python "${PYTHON:-3.12}" .venv
uv pip install -q --python .venv/bin/python ray==2.60.0

cat > stay.py <<'EOF'
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import ray

KINDS = {
    "child": "exec sleep 900",
    "grandchild": "sleep 900 & echo $! > {file}; wait",
    "orphan": "sleep 900 & echo $! > {file}",
    "child's session": "exec sleep 900",
    "orphan's session": "setsid sleep 900 & echo $! > {file}",
}
NOWHERE = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@ray.remote(num_cpus=0)
class Starter:
    def start(self, folder):
        return {"actor": os.getpid()} | {kind: self._started(kind, Path(folder, kind)) for kind in KINDS}

    def _started(self, kind, file):
        command = KINDS[kind].format(file=f'"{file}"')
        process = subprocess.Popen(["sh", "-c", command], start_new_session=kind == "child's session", **NOWHERE)
        if kind.startswith("child"):
            return process.pid
        while not (file.exists() and file.read_text().endswith("\n")):
            time.sleep(0.05)
        if kind != "grandchild":
            process.wait()  # so that it is an orphan
        return int(file.read_text())

    def crash(self):
        os.kill(os.getpid(), signal.SIGKILL)


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


folder = sys.argv[1]
options = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 1 << 27}
ray.init("local", num_cpus=1, _temp_dir=folder, **options)
left = []
for name, end in (("ray.kill", ray.kill), ("SIGKILL", lambda actor: actor.crash.remote())):
    actor = Starter.remote()
    Path(folder, name).mkdir()
    pids = ray.get(actor.start.remote(f"{folder}/{name}"))
    end(actor)
    while runs(pids["actor"]):
        time.sleep(0.1)
    time.sleep(25)
    print(f"{name}:", ", ".join(f"{kind} {'runs' if runs(pids[kind]) else 'ended'}" for kind in KINDS), flush=True)
    left += [pids[kind] for kind in KINDS]
before = sum(map(runs, left))
ray.shutdown()
print("after ray.shutdown(), of", before, "run", sum(map(runs, left)))
for pid in filter(runs, left):
    os.kill(pid, signal.SIGKILL)
EOF

export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled
seen() { # FOLDER [VARIABLE=VALUE]: a busy machine needs several tries until Ray starts
  for try in 1 2 3 4 5; do
    mkdir -p "$work/$1$try"
    if env "${@:2}" .venv/bin/python stay.py "$work/$1$try" 2> said.txt > found.txt; then
      grep '^ray.kill:\|^SIGKILL:\|^after' found.txt  # Ray prints that a worker died
      return
    fi
  done
  tail -5 said.txt >&2
  exit 2
}
unset RAY_process_group_cleanup_enabled RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper
groups=RAY_process_group_cleanup_enabled=0 subreaper=RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper=1
found=$(
  echo "by default"
  seen a
  echo "groups off"
  seen b "$groups"
  echo "subreaper"
  seen c "$subreaper"
  echo "subreaper, groups off"
  seen d "$subreaper" "$groups"
)
echo "$found"
expected="by default
ray.kill: child ended, grandchild ended, orphan ended, child's session ended, orphan's session runs
SIGKILL: child ended, grandchild ended, orphan ended, child's session runs, orphan's session runs
after ray.shutdown(), of 3 run 3
groups off
ray.kill: child ended, grandchild runs, orphan runs, child's session ended, orphan's session runs
SIGKILL: child runs, grandchild runs, orphan runs, child's session runs, orphan's session runs
after ray.shutdown(), of 8 run 8
subreaper
ray.kill: child ended, grandchild ended, orphan ended, child's session ended, orphan's session ended
SIGKILL: child ended, grandchild ended, orphan ended, child's session runs, orphan's session runs
after ray.shutdown(), of 2 run 2
subreaper, groups off
ray.kill: child ended, grandchild ended, orphan ended, child's session ended, orphan's session ended
SIGKILL: child ended, grandchild ended, orphan ended, child's session ended, orphan's session ended
after ray.shutdown(), of 0 run 0"
[ "$found" = "$expected" ] || { echo "this has changed; expected: $expected"; exit 1; }
echo "as recorded"
