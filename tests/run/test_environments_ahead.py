"""`lorarl run` whose episodes of later steps are played while one trains, by servers of vLLM on loopback."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from run.command import kill_with_engine
from run.jobs import Job, published
from run.test_environments import asked, with_tools
from run.test_servers import CORRECTED, TWO_ADAPTERS, dumping, root, step_of, warnings
from support.both_backends import BACKEND
from support.vllm_server import VllmServer, vllm_server

STEPS = 8
WHOLE_PROMPTS = ["--no-enable-chunked-prefill"]
"""On a CPU, vLLM 0.26 ends where it splits the prompt of a request with a seed. Descriptions of tools are long."""
ENVIRONMENT = """
import os, random, time
from pathlib import Path

class Vowels:
    def reset(self, row):
        self.turns = 0
        return f"{row['prompt']} {random.randrange(10**6)}"

    def step(self, text):
        self.turns += 1
        gate = Path(os.environ["LETTERS_GATE"])
        while gate.exists():
            gate.with_name("waiting").touch()
            time.sleep(0.01)
        return {"text": f"you wrote {len(text)}", "reward": sum(c in "aeiou" for c in text) / 8, "done": self.turns > 2}
"""


def talking(folder: Path, base: Path, servers: Sequence[VllmServer], staleness: int) -> Job:
    """A job whose episodes have several turns, and stand still at the gate after a turn."""
    job = Job(folder, base)
    (job.folder / "vowels.py").write_text(ENVIRONMENT)
    job.change(
        reward=None,
        environment={"function": "vowels:Vowels", "maxTurns": 4, "concurrency": 24, "timeoutSeconds": 120},
        rollout={"maxPromptTokens": 64, "maxResponseTokens": 180, "stop": ["a", "e", "i", " "]},
        trainer={"steps": STEPS},
    )
    return ahead(job, servers, staleness)


def ahead(job: Job, servers: Sequence[VllmServer], staleness: int) -> Job:
    urls = [server.url for server in servers]
    job.change(rollout={"servers": urls, "serverTimeoutSeconds": 120.0, "maxStaleness": staleness}, algorithm=CORRECTED)
    return job


def within_an_episode(job: Job) -> Callable[[], bool]:
    """Close the gate; return what says that an episode stands still there."""
    (job.folder / "waiting").unlink(missing_ok=True)
    job.gate.touch()
    return (job.folder / "waiting").exists


@pytest.mark.long
def test_episodes_ahead_are_those_of_a_run_in_turns_however_it_ends(base: Path, tmp_path: Path) -> None:
    """Rows, and what the seeds make of them, also after a kill and a SIGTERM in the middle of episodes."""
    with vllm_server(base, tmp_path / "a.log", takes_adapters=True, options=TWO_ADAPTERS) as server:
        in_turns = talking(tmp_path / "turns", base, [server], 0)
        ended = dumping(in_turns).end()
        assert ended.code == 0 and "staleness/max" not in ended.rows[-1], ended

        job = talking(tmp_path / "ahead", base, [server], 1)
        run = dumping(job)
        run.wait_until(lambda: len(published(job)) >= 1, "a checkpoint was published")
        run.wait_until(within_an_episode(job), "an episode stands still")
        run.kill()
        killed = run.end()
        assert killed.left_running == [], killed
        job.gate.unlink()

        run = dumping(job)
        run.wait_for_step(5)
        run.wait_until(within_an_episode(job), "an episode stands still")
        run.signal(signal.SIGTERM)
        run.wait_for_output("SIGTERM: finishing this step")
        job.gate.unlink()
        stopped = run.end()
        assert stopped.code == 75 and stopped.left_running == [], stopped

        ended = dumping(job).end()
        assert ended.code == 0 and ended.left_running == [], ended
        assert server.adapters() == []
    assert [step_of(job, step) for step in range(1, STEPS + 1)] == [
        step_of(in_turns, step) for step in range(1, STEPS + 1)
    ]
    steps = [row for row in ended.rows if "reward_mean" in row]
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert max(row["staleness/max"] for row in steps) == 1.0
    assert all(1.0 <= row["staleness/versions"] <= 2.0 for row in steps)
    assert all(row["episode/turns"] > 1 for row in steps)
    assert sum(row["staleness/hidden_seconds"] > 0 for row in steps) >= STEPS - 3
    assert all(row["mean_abs_logprob_diff"] < 1e-5 for row in steps if "mean_abs_logprob_diff" in row)
    assert ended.summary["eval_after"] is not None


@pytest.mark.long
def test_a_server_that_is_killed_within_episodes_leaves_them_to_another(base: Path, tmp_path: Path) -> None:
    with (
        vllm_server(base, tmp_path / "a.log", takes_adapters=True, options=TWO_ADAPTERS) as killed,
        vllm_server(base, tmp_path / "b.log", takes_adapters=True, options=TWO_ADAPTERS) as other,
    ):
        job = talking(tmp_path / "job", base, [killed, other], 1)
        run = job.start()
        run.wait_for_step(2)
        run.wait_until(within_an_episode(job), "an episode stands still")
        kill_with_engine(killed.process.pid)
        job.gate.unlink()
        ended = run.end()
        assert ended.code == 0 and ended.left_running == [], ended
        assert other.adapters() == []
    assert f"{root(killed)} cannot be reached" in warnings(ended)
    steps = [row for row in ended.rows if "reward_mean" in row]
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert not any(row["reward_failures"] for row in steps), "no episode was lost with the server"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["tools", "agent"])
def test_tools_and_agents_are_played_ahead(base: Path, tmp_path: Path, kind: str) -> None:
    job = with_tools(tmp_path / "job", base, BACKEND) if kind == "tools" else asked(tmp_path / "job", base)
    job.change(trainer={"steps": 4})
    options = [*TWO_ADAPTERS, *WHOLE_PROMPTS]
    with vllm_server(job.base, tmp_path / "a.log", takes_adapters=True, options=options) as server:
        ended = ahead(job, [server], 1).run()
        assert ended.code == 0 and ended.left_running == [], ended
        assert server.adapters() == []
    steps = [row for row in ended.rows if "reward_mean" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert [row["staleness/max"] for row in steps] == [0.0, 1.0, 1.0, 1.0]
    assert all(row["staleness/hidden_seconds"] > 0 for row in steps[1:])
    name = "tools/malformed" if kind == "tools" else "reward/long"
    assert all(row[name] > 0 for row in steps)
