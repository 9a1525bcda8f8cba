"""`lorarl run` with an agent that branches: resumed, replayed, evaluated and shown."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from run.command import COMMAND, Ended
from run.jobs import Job
from run.test_environments import adapter, whole_as_resumed

AGENT = """
import openai

def play(row, llm):
    client = openai.OpenAI()
    messages = [{"role": "user", "content": row["prompt"]}]
    for turn in range(4 if row["prompt"] in ("sing", "again", "and what else") else 2):
        # Only the newest messages: from the third turn on, each request begins a further sequence.
        reply = client.chat.completions.create(model=llm.model, messages=messages[-3:])
        said = reply.choices[0].message
        messages += [said, {"role": "user", "content": f"you wrote {len(said.content)}"}]
    return sum(c in "aeiou" for c in said.content) / 8
"""
STEPS = 2


def branching(folder: Path, base: Path) -> Job:
    """A job whose episodes have one to three sequences."""
    job = Job(folder, base)
    (job.folder / "my_agent.py").write_text(AGENT)
    job.change(
        reward=None,
        environment={"agent": "my_agent:play", "maxTurns": 4, "maxTurnTokens": 12, "timeoutSeconds": 120},
        algorithm={"type": "grpo", "lossAggregation": "sequence_mean", "updatesPerStep": 2},
        rollout={"maxPromptTokens": 128, "maxResponseTokens": 128, "stop": ["a", "e", "i", " "]},
        trainer={"steps": STEPS},
        tracking={"samplesPerStep": 64},
    )
    return job


def steps_of(ended: Ended) -> list[dict]:
    return [row for row in ended.rows if "loss" in row]


@pytest.mark.long
def test_episodes_of_several_sequences_are_trained_replayed_and_shown(tmp_path: Path, base: Path) -> None:
    job = branching(tmp_path / "made", base)
    made = job.start(more=["--dump-rollouts", "rollouts"]).end()
    assert made.code == 0, made.stderr
    rows = steps_of(made)
    sequences, differences = ([row[name] for row in rows] for name in ("episode/sequences", "mean_abs_logprob_diff"))
    assert max(sequences) > 1 and min(sequences) >= 1 and max(sequences) <= 3, sequences
    assert max(differences) < 1e-5, differences
    assert sum(abs(row["grad_norm"]) for row in rows) > 0
    shown = [json.loads(line) for line in (made.out / "samples.jsonl").read_text().splitlines()]
    training = [sample for sample in shown if not sample["evaluation"]]
    counts = [1 + len(sample.get("further", ())) for sample in training]
    # All groups are shown, so the lines have what the metric counts.
    assert len(training) == 32 and np.mean(counts) == pytest.approx(np.mean(sequences))
    assert any("you wrote" in one["model_prompt"] for sample in training for one in sample.get("further", ()))
    again = job.start(more=["--replay", "rollouts", "--set", "metadata.name=again"], out=tmp_path / "again").end()
    assert again.code == 0, again.stderr
    assert again.adapter_digest == made.adapter_digest
    assert [row["grad_norm"] for row in steps_of(again)] == [row["grad_norm"] for row in rows]
    _require_commands_play_the_same(made, job)


def _require_commands_play_the_same(made: Ended, job: Job) -> None:
    evaluate, chat = (
        subprocess.run([*COMMAND[:-1], *arguments], cwd=job.folder, capture_output=True, text=True, check=False)
        for arguments in (["evaluate", str(made.out), "--json"], ["chat", str(made.out), "--row", "4"])
    )
    assert evaluate.returncode == 0, evaluate.stderr
    found = json.loads(evaluate.stdout)
    assert found["score"]["adapter"]["mean"] == made.summary["eval_after"]
    assert found["components"]["episode/sequences"]["adapter"] == 3.0
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout.count("sequence 2:") == chat.stdout.count("sequence 3:") == 2, "of the base and of the adapter"
    assert chat.stdout.count("after 4 turns in 3 sequences") == 2, chat.stdout


@pytest.mark.long
def test_a_run_of_a_branching_agent_resumes_to_the_same_bytes(tmp_path: Path, base: Path) -> None:
    whole, resumed = (branching(tmp_path / name, base) for name in ("whole", "resumed"))
    whole_as_resumed(whole, resumed)
    assert adapter(whole)


def test_too_many_sequences_fail_the_episode_and_say_what_to_raise(tmp_path: Path, base: Path) -> None:
    job = branching(tmp_path, base)
    job.change(environment={"maxSequences": 2})
    (job.folder / "held_out.jsonl").write_text('{"prompt": "hum"}\n')  # two turns, so that its evaluation has a score
    ended = job.run()
    assert ended.code == 0, ended.stderr
    assert 0 < sum(row.get("episode/ended_branch", 0.0) for row in steps_of(ended)) < STEPS
    assert "are left out (branch): The request begins a further sequence, and the episode has 2" in ended.stdout
    assert "or raise maxSequences" in ended.stdout
