"""A job's environment on Ray nodes that are there for it, as in pods of `cluster.environments`.

The nodes are real processes of Ray, each with its own run folder; driver, engine and API server are real too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from run.command import LAST_SECONDS
from run.in_cluster import InCluster, in_cluster
from run.jobs import PROMPTS, Job
from run.ray_nodes import RayNodes, ray_nodes
from support.cluster.processes import until
from support.cluster.tools import tools_or_skip

STEPS = 6
ENVIRONMENT = """
import os
import random
import time
from pathlib import Path


class Vowels:
    def reset(self, row):
        self.folder = Path(row["folder"])
        return f"{row['prompt']} {random.randrange(10)}"

    def step(self, text):
        (self.folder / os.environ.get("LORARL_POD", "here")).touch()
        while (self.folder / "hold").exists():
            time.sleep(0.01)
        return {"text": f"{len(text)} {random.randrange(10)}", "reward": sum(c in "aeiou" for c in text) / 8}


def play(row, llm):
    import json, urllib.request

    Path(row["folder"], os.environ.get("LORARL_POD", "here")).touch()
    asked = {"model": llm.model, "messages": [{"role": "user", "content": row["prompt"]}]}
    request = urllib.request.Request(
        f"{llm.base_url}/chat/completions",
        json.dumps(asked).encode(),
        {"Authorization": f"Bearer {llm.api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answered:
        text = json.load(answered)["choices"][0]["message"]["content"] or ""
    return sum(c in "aeiou" for c in text) / 8 + random.random() / 100
"""


def job_of(folder: Path, base: Path, seen: Path, **environment: Any) -> Job:
    """A job whose environment's code is at a source, and whose rows name a folder for its marks."""
    job = Job(folder, base)
    seen.mkdir(exist_ok=True)
    (job.folder / "code").mkdir()
    (job.folder / "code/vowels.py").write_text(ENVIRONMENT)
    job.write_rows({"prompt": prompt, "folder": str(seen)} for prompt in PROMPTS)
    (job.folder / "held_out.jsonl").write_text((job.folder / "train.jsonl").read_text().splitlines()[0] + "\n")
    played = {"maxTurns": 3, "timeoutSeconds": 300.0, "source": {"uri": f"file://{job.folder}/code"}}
    job.change(
        reward=None,
        environment=played | environment,
        rollout={"maxPromptTokens": 64, "maxResponseTokens": 180, "stop": ["a", "e", "i", " "]},
        trainer={"steps": STEPS},
        checkpoint={"uri": f"file://{folder}/checkpoints"},
        cluster={"environments": {"replicas": 2}},
    )
    return job


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[RayNodes]:
    with ray_nodes(tmp_path / "nodes", "trainer") as running:
        for name in ("games-a", "games-b"):
            running.add(name, plays=True)
        yield running


@pytest.fixture
def start(base: Path, nodes: RayNodes, tmp_path: Path) -> Iterator[Any]:
    """Make a job in the cluster, of the given options."""
    stack = []

    def make(**environment: Any) -> InCluster:
        job = job_of(tmp_path / "job", base, tmp_path / "seen", **environment)
        job.environment |= {"RAY_ADDRESS": nodes.address, "LORARL_CACHE": str(nodes.cache("head"))}
        context = in_cluster(job, tmp_path)
        stack.append(context)
        return context.__enter__()

    with tools_or_skip():
        yield make
    for context in stack:
        context.__exit__(None, None, None)


def marks(seen: Path) -> set[str]:
    """Where episodes have been played, since the marks were removed."""
    return {path.name for path in seen.iterdir()} - {"hold"}


def playing() -> list[int]:
    """Processes of environments that this process's raylets have started."""
    found = []
    for one in psutil.Process().children(recursive=True):
        try:
            if one.status() != psutil.STATUS_ZOMBIE and "rewards/environment/" in " ".join(one.cmdline()):
                found.append(one.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.long
def test_nodes_that_are_killed_in_mid_episode_change_no_byte(
    start: Any, nodes: RayNodes, base: Path, tmp_path: Path
) -> None:
    """One of two is killed, and then the other. The adapter is that of a run on one machine.

    Episodes wait for their next answer while the file `hold` is there, so that each is killed in mid-episode.
    """
    alone = job_of(tmp_path / "alone", base, tmp_path / "seen-alone", function="vowels:Vowels")
    expected = alone.run()
    assert expected.code == 0, expected
    assert marks(tmp_path / "seen-alone") == {"here"}
    assert "ignores fields that need a cluster: spec.cluster.environments" in expected.stdout + expected.stderr

    here, seen = start(function="vowels:Vowels"), tmp_path / "seen"

    def played_since(run: Any, change: Callable[[], None]) -> str:
        """Change something; return a node that has been asked for an answer after that."""
        for mark in marks(seen):
            (seen / mark).unlink()
        change()
        run.wait_until(lambda: marks(seen), "a node plays", every=0.1)
        return min(marks(seen))

    hold = seen / "hold"
    run = here.start(1)
    run.wait_until(lambda: here.status.get("step", 0) >= 1, "a step is done", every=0.1)
    first = played_since(run, hold.touch)
    assert first in {"games-a", "games-b"}, "nothing is played beside the driver"
    nodes.kill(first)
    run.wait_for_output(f"pod {first} is lost")
    played_since(run, hold.unlink)
    second = played_since(run, hold.touch)
    assert {first, second} == {"games-a", "games-b"}
    nodes.kill(second)
    run.wait_for_output(f"pod {second} is lost")
    nodes.add("games-c", plays=True)
    hold.unlink()
    ended = run.end()

    assert ended.code == 0, ended
    rows = [row for row in ended.rows if "reward_mean" in row]
    assert len(rows) == STEPS and all(row["reward_failures"] == 0 for row in rows)
    assert (seen / "games-c").exists()
    assert ended.adapter_digest == expected.adapter_digest
    assert "failure" not in here.status
    until(LAST_SECONDS, "no environment is left", lambda: not playing())


@pytest.mark.long
def test_an_agent_reaches_the_model_from_its_node(start: Any, base: Path, tmp_path: Path) -> None:
    alone = job_of(tmp_path / "alone", base, tmp_path / "seen-alone", agent="vowels:play")
    expected = alone.run()
    assert expected.code == 0, expected

    ended = start(agent="vowels:play").start(1).end()
    assert ended.code == 0, ended
    assert marks(tmp_path / "seen") and marks(tmp_path / "seen") <= {"games-a", "games-b"}
    assert all(row["reward_failures"] == 0 for row in ended.rows if "reward_mean" in row)
    assert ended.adapter_digest == expected.adapter_digest
    until(LAST_SECONDS, "no environment is left", lambda: not playing())
