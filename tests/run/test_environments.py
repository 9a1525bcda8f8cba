"""`lorarl run` with an environment: it trains, ends in the same bytes again and when resumed, and counts what fails."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lorarl_trainer.data.tool_calls import SCHEMAS
from lorarl_trainer.progress import read_rows
from run.command import COMMAND, Ended, digest
from run.jobs import Job, published
from support.open_env import needs_openenv, open_env
from support.tiny_tokenizers import TOOLS_CHATML

ROOT = Path(__file__).resolve().parents[2]
STEPS = 2
ENVIRONMENT = """
import asyncio, random, time

class Vowels:
    async def reset(self, row):
        self.fails = random.random() < 0.2 and row["prompt"] != "and what else"  # the held-out row
        return row["prompt"]

    async def step(self, text):
        await asyncio.sleep(time.time() % 0.02)
        if self.fails: raise ValueError("no more")
        return {"text": f"you wrote {len(text)}", "reward": sum(c in "aeiou" for c in text) / 8, "long": len(text)}
"""


def played(folder: Path, base: Path, backend: str) -> Job:
    job = Job(folder, base, backend=backend)
    (job.folder / "vowels.py").write_text(ENVIRONMENT)
    job.change(
        reward=None,
        environment={"function": "vowels:Vowels", "maxTurns": 3},
        # A model of random weights hardly ever ends a turn by itself.
        rollout={"maxPromptTokens": 64, "maxResponseTokens": 180, "stop": ["a", "e", "i", " "]},
        trainer={"steps": STEPS},
    )
    return job


def adapter(job: Job) -> str:
    return digest(job.checkpoints / published(job)[-1] / "lora_adapter/adapter_model.safetensors")


def whole_as_resumed(whole: Job, resumed: Job) -> Ended:
    """Make the same run twice, the second in two parts, with the same adapter; return the first."""
    ended = whole.run()
    assert ended.code == 0, ended.stderr
    assert resumed.run(f"trainer.steps={STEPS // 2}").code == 0
    assert resumed.run().code == 0
    assert adapter(whole) == adapter(resumed)
    return ended


@pytest.mark.long
def test_a_run_and_a_resumed_one_end_in_the_same_bytes(tmp_path: Path, base: Path, backend: str) -> None:
    whole_as_resumed(*(played(tmp_path / name, base, backend) for name in ("whole", "resumed")))


def test_a_run_counts_turns_and_failures_and_evaluate_plays_the_same(tmp_path: Path, base: Path, backend: str) -> None:
    """Resumed to the same bytes: see the long test."""
    ended = played(tmp_path / "whole", base, backend).run()
    assert ended.code == 0, ended.stderr
    rows = [row for row in ended.rows if "reward_mean" in row]
    assert all(1 <= row["episode/turns"] <= 3 and row["episode/environment_seconds"] > 0 for row in rows)
    assert all(
        sum(share for name, share in row.items() if name.startswith("episode/ended_")) == pytest.approx(1.0)
        for row in rows
    )
    failed = sum(row["reward_failures"] for row in rows)
    assert failed > 0
    assert any(row.get("episode/ended_exception", 0) > 0 for row in rows)
    assert "exception): step: ValueError: no more (vowels.py, line " in ended.stdout
    assert "reward/long" in rows[0] and "environment" in rows[0]["seconds"]
    shown = [json.loads(line) for line in (ended.out / "samples.jsonl").read_text().splitlines()]
    assert any("<|im_start|>user\nyou wrote " in sample["completion"] for sample in shown)
    _require_same_scores(ended, tmp_path / "whole")


def _require_same_scores(ended: Ended, folder: Path) -> None:
    """`lorarl evaluate` plays the held-out row, and finds what the run found."""
    command = [*COMMAND[:-1], "evaluate", ended.out, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["reward"] == "vowels:Vowels" and found["rows"] == 1
    assert found["score"]["base"]["mean"] == ended.summary["eval_before"]
    assert found["score"]["adapter"]["mean"] == ended.summary["eval_after"]
    assert 1 <= found["components"]["episode/turns"]["adapter"] <= 3


TOOLS = """
import random

def look(word: str) -> str:
    \"\"\"Look up a word.

    Args:
        word: The word.
    \"\"\"
    return f"{word} {random.randrange(10)}"
"""


def test_a_run_with_tools_counts_their_calls_and_shows_them(tmp_path: Path, base: Path) -> None:
    """Resumed to the same bytes: see the long test."""
    ended = with_tools(tmp_path / "whole", base, "megatron").run()
    assert ended.code == 0, ended.stderr
    rows = [row for row in ended.rows if "reward_mean" in row]
    assert sum(row["tools/calls"] for row in rows) > 0 and all("tools/malformed" in row for row in rows)
    shown = [json.loads(line) for line in (ended.out / "samples.jsonl").read_text().splitlines()]
    assert all('"name": "look"' in sample["model_prompt"] for sample in shown)
    assert any("<tool_response>\nError: the tool call is malformed" in sample["completion"] for sample in shown)


@pytest.mark.long
def test_a_run_with_tools_and_a_resumed_one_end_in_the_same_bytes(tmp_path: Path, base: Path, backend: str) -> None:
    whole_as_resumed(*(with_tools(tmp_path / name, base, backend) for name in ("whole", "resumed")))


def with_tools(folder: Path, base: Path, backend: str) -> Job:
    """A job in which a turn with a vowel is a malformed call: a model of random weights never writes a whole one."""
    model = shutil.copytree(base, folder / "base")
    long = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 1024}
    (model / "config.json").write_text(json.dumps(long))  # descriptions of tools are long, and tokens are letters
    config = json.loads((model / "tokenizer_config.json").read_text())
    schema = copy.deepcopy(SCHEMAS["hermes"])
    found = r"(?:<tool_call>|[aeiou](?!.*</tool_call>))(.*?)(?:</tool_call>|\Z)"
    schema["properties"]["tool_calls"]["x-regex-iterator"] = found
    config |= {"chat_template": TOOLS_CHATML, "response_schema": schema}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    job = Job(folder, model, backend=backend)
    (job.folder / "my_tools.py").write_text(TOOLS)
    job.change(
        environment={"tools": ["my_tools:look"], "maxTurns": 2},
        rollout={"maxPromptTokens": 512, "maxResponseTokens": 280, "stop": ["a", "e", "i", " "]},
        trainer={"steps": STEPS},
    )
    return job


AGENT = """
import time
import openai

def play(row, llm):
    if row["prompt"] == "sing":
        raise ValueError("no more")
    client, messages = openai.OpenAI(), [{"role": "user", "content": row["prompt"]}]
    for _ in range(2):
        reply = client.chat.completions.create(model=llm.model, messages=messages)
        time.sleep(time.time() % 0.02)
        said = reply.choices[0].message
        messages += [said, {"role": "user", "content": f"you wrote {len(said.content)}"}]
    return {"reward": sum(c in "aeiou" for c in said.content) / 8, "long": len(said.content)}
"""


def test_an_agent_is_trained_by_base_url_alone(tmp_path: Path, base: Path) -> None:
    """Evaluations are greedy. Resumed to the same bytes: see the long test."""
    ended = asked(tmp_path / "whole", base).run("trainer.steps=2")
    assert ended.code == 0, ended.stderr
    rows = [row for row in ended.rows if "reward_mean" in row]
    assert all(1 < row["episode/turns"] <= 2 for row in rows)
    assert any("eval_score" in row for row in ended.rows)
    assert "reward/long" in rows[0] and sum(row["reward_failures"] for row in rows) > 0
    shown = [json.loads(line) for line in (ended.out / "samples.jsonl").read_text().splitlines()]
    assert any("<|im_start|>user\nyou wrote " in sample["completion"] for sample in shown)


@pytest.mark.long
def test_a_run_with_an_agent_and_a_resumed_one_end_in_the_same_bytes(tmp_path: Path, base: Path) -> None:
    whole_as_resumed(*(asked(tmp_path / name, base) for name in ("whole", "resumed")))


def asked(folder: Path, base: Path) -> Job:
    """A job with an agent, whose episodes of one row fail."""
    job = Job(folder, base)
    (job.folder / "my_agent.py").write_text(AGENT)
    job.change(
        reward=None,
        environment={"agent": "my_agent:play", "maxTurns": 3, "timeoutSeconds": 120},
        rollout={"maxPromptTokens": 64, "maxResponseTokens": 180, "stop": ["a", "e", "i", " "]},
        trainer={"steps": STEPS},
    )
    return job


@needs_openenv
def test_a_run_plays_at_a_server_of_openenv_and_evaluates_there(tmp_path: Path, base: Path) -> None:
    """Resumed to the same bytes: see the long test."""
    with open_env("vowels", sessions=64) as url:
        job = _served(tmp_path / "whole", base, url)
        looked = subprocess.run([*COMMAND, "job.yaml", "--dry-run"], cwd=job.folder, capture_output=True, text=True)
        ended = job.run()
        scored = subprocess.run(
            [*COMMAND[:-1], "evaluate", ended.out, "--json"],
            cwd=job.folder,
            capture_output=True,
            text=True,
            check=False,
        )
    assert looked.returncode == 0, looked.stderr
    assert scored.returncode == 0, scored.stderr
    assert json.loads(scored.stdout)["score"]["adapter"]["mean"] == ended.summary["eval_after"]
    assert re.search(r"<\|im_start\|>user\n  \| say [0-6]<", looked.stdout), looked.stdout
    assert "in 2 turns; done" in looked.stdout
    assert ended.code == 0, ended.stderr
    rows = [row for row in ended.rows if "reward_mean" in row]
    assert all(1 < row["episode/turns"] <= 2 and row["reward/invalid_moves"] == 0 for row in rows)
    assert "reward/long" in rows[0] and any("eval_score" in row for row in ended.rows)
    shown = [json.loads(line) for line in (ended.out / "samples.jsonl").read_text().splitlines()]
    assert any("<|im_start|>user\nyou wrote " in sample["completion"] for sample in shown)


@needs_openenv
@pytest.mark.long
def test_a_run_at_a_server_and_a_resumed_one_end_in_the_same_bytes(tmp_path: Path, base: Path) -> None:
    with open_env("vowels", sessions=64) as url:
        whole_as_resumed(*(_served(tmp_path / name, base, url) for name in ("whole", "resumed")))


@needs_openenv
@pytest.mark.long
def test_a_server_with_too_few_sessions_costs_the_episodes_that_get_none(tmp_path: Path, base: Path) -> None:
    with open_env("vowels", sessions=3) as url:
        ended = _served(tmp_path / "job", base, url, timeoutSeconds=3).run("trainer.steps=1")
    assert ended.code == 0, ended.stderr
    assert "has no session left, since all of its 3 are taken. Set spec.environment.concurrency to 3" in ended.stdout
    assert next(row for row in ended.rows if "reward_mean" in row)["episode/ended_server"] > 0


def _served(folder: Path, base: Path, url: str, **settings: object) -> Job:
    job = Job(folder, base)
    job.change(
        reward=None,
        environment={"openEnv": url, "maxTurns": 3, "timeoutSeconds": 60, **settings},
        data={"train": {"episodes": {"size": 16}}, "eval": {"episodes": {"size": 2, "seed": 100}, "every": 1}},
        rollout={"maxPromptTokens": 64, "maxResponseTokens": 180, "stop": ["a", "e", "i", " "]},
        trainer={"steps": STEPS},
    )
    return job


@pytest.mark.long
def test_the_example_learns_to_use_what_it_is_told(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "examples/guess/make_base.py", "--out", tmp_path / "out/guess"], check=True)
    command = [*COMMAND, ROOT / "examples/guess-cpu.yaml", "--out", tmp_path / "run"]
    subprocess.run(command, check=True, cwd=tmp_path)
    rows = [row for row in read_rows(tmp_path / "run/metrics.jsonl") if "reward_mean" in row]
    assert rows[-1]["reward_mean"] > rows[0]["reward_mean"] + 0.2
