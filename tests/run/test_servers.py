"""`lorarl run` whose completions are made by `vllm serve`, which somebody else started: vLLM's own, on loopback."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.rollout.dump import read_step
from run.command import Ended, Running, kill_with_engine
from run.jobs import Job, published
from support.vllm_server import VllmServer, vllm_server

STEPS = 8


def served(base: Path, folder: Path, servers: Sequence[VllmServer], **rollout: Any) -> Job:
    """A job whose completions come from servers."""
    job = Job(folder, base)
    urls = [server.url for server in servers]
    job.change(rollout={"servers": urls, "serverTimeoutSeconds": 120.0, **rollout}, trainer={"steps": STEPS})
    return job


def warnings(ended: Ended) -> str:
    """What the run warned about servers."""
    return "\n".join(line for line in (ended.stdout + ended.stderr).splitlines() if "warning: " in line)


@pytest.mark.long
def test_two_servers_generate_what_is_trained(base: Path, tmp_path: Path) -> None:
    """At a temperature and with a text that ends completions, as the job says and not as the servers would."""
    raw = ["--logprobs-mode", "processed_logprobs"]
    with (
        vllm_server(base, tmp_path / "a.log", takes_adapters=True, options=raw) as first,
        vllm_server(base, tmp_path / "b.log", takes_adapters=True, options=raw) as second,
    ):
        job = served(base, tmp_path / "job", [first, second], temperature=0.8, stop=["z"])
        ended = job.run()
        assert ended.code == 0, ended
        assert first.adapters() == second.adapters() == []
        for log in (tmp_path / "a.log", tmp_path / "b.log"):
            assert log.read_text().count("POST /inference/v1/generate") > STEPS * 4
    steps = [row for row in ended.rows if "reward_mean" in row]
    assert len(steps) == STEPS and all(row["mean_abs_logprob_diff"] < 1e-5 for row in steps)
    assert "spec.rollout.servers" not in warnings(ended)
    texts = [json.loads(line)["completion"] for line in (ended.out / "samples.jsonl").read_text().splitlines()]
    assert any(text.endswith("z") for text in texts) and not any("z" in text[:-1] for text in texts)
    assert not (ended.out / "served").exists()


@pytest.mark.long
def test_a_server_that_is_killed_and_started_again_continues_the_step(base: Path, tmp_path: Path) -> None:
    with vllm_server(base, tmp_path / "a.log", takes_adapters=True) as server:
        job = served(base, tmp_path / "job", [server])
        run = job.start()
        run.wait_for_step(2)
        kill_with_engine(server.process.pid)
        port = int(server.url.removesuffix("/v1").rpartition(":")[2])
    run.wait_for_output("cannot be reached")
    with vllm_server(base, tmp_path / "b.log", port, takes_adapters=True) as again:
        ended = run.end()
        assert ended.code == 0, ended
        assert again.adapters() == []
    assert "serves again" in warnings(ended)
    assert [row["step"] for row in ended.rows if "reward_mean" in row] == list(range(1, STEPS + 1))


@pytest.mark.long
def test_servers_that_compute_something_else_stop_the_run_at_its_start(base: Path, tmp_path: Path) -> None:
    """One with another base model, and one that reports log-probabilities from before the temperature."""
    other = tmp_path / "other"
    make_other(base, other)
    with (
        vllm_server(other, tmp_path / "a.log", takes_adapters=True) as liar,
        vllm_server(base, tmp_path / "b.log", takes_adapters=True) as honest,
    ):
        ended = served(base, tmp_path / "base", [honest, liar]).run()
        assert ended.code == 1 and not ended.rows, ended
        assert f"{root(liar)} and the trainer do not compute the same with the base model" in ended.stderr
        assert f"{root(honest)} and the trainer" not in ended.stderr

        ended = served(base, tmp_path / "raw", [honest], temperature=0.5).run()
        assert ended.code == 1 and not ended.rows, ended
        assert "--logprobs-mode processed_logprobs" in ended.stderr


@pytest.mark.long
def test_servers_that_take_no_adapter_stop_the_run_with_what_to_change(base: Path, tmp_path: Path) -> None:
    with vllm_server(base, tmp_path / "a.log") as server:
        ended = served(base, tmp_path / "none", [server]).run()
    assert ended.code == 1 and not ended.rows, ended
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora" in ended.stderr, ended.stderr


@pytest.mark.long
def test_servers_with_a_key_generate_for_who_has_it(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is in nothing that the run leaves. A wrong one and none stop it at its start."""
    key = "key-4d1f7c90"
    secret = tmp_path / "secrets" / "vllm-key" / "OPENAI_API_KEY"
    secret.parent.mkdir(parents=True)
    monkeypatch.setenv("LORARL_SECRETS_DIR", str(tmp_path / "secrets"))
    with vllm_server(base, tmp_path / "a.log", takes_adapters=True, key=key) as server:
        job = served(base, tmp_path / "job", [server], credentialsSecret="vllm-key")
        job.change(trainer={"steps": 2})
        secret.write_text("another-key-8a3b")
        refused = job.run()
        assert refused.code == 1 and not refused.rows, refused
        assert root(server) in refused.stderr
        assert "It refuses the key of spec.rollout.credentialsSecret" in refused.stderr, refused.stderr
        assert "another-key-8a3b" not in refused.stdout + refused.stderr

        secret.write_text(f"{key}\n")
        ended = job.run()
        assert ended.code == 0, ended
        assert server.adapters() == []
        left = [file for file in job.folder.rglob("*") if file.is_file() and key.encode() in file.read_bytes()]
        assert not left and key not in ended.stdout + ended.stderr

        without = served(base, tmp_path / "none", [server]).run()
        assert without.code == 1 and not without.rows, without
        assert "name the Secret in spec.rollout.credentialsSecret" in without.stderr, without.stderr


CORRECTED = {"correction": {"preset": "decoupled_token_is"}}
TWO_ADAPTERS = ["--max-loras", "2"]


@pytest.mark.long
def test_steps_ahead_train_each_row_once_however_the_run_ends(base: Path, tmp_path: Path) -> None:
    """The rows of each step are those of a run that takes turns, also after a kill in mid-step and a SIGTERM."""
    with vllm_server(base, tmp_path / "a.log", takes_adapters=True, options=TWO_ADAPTERS) as server:
        in_turns = served(base, tmp_path / "turns", [server])
        ended = dumping(in_turns).end()
        assert ended.code == 0 and "staleness/max" not in ended.rows[-1], ended

        job = served(base, tmp_path / "ahead", [server], maxStaleness=1)
        job.change(algorithm=CORRECTED)
        run = dumping(job)
        run.wait_for_step(3)
        job.gate.touch()
        run.wait_until(lambda: len(published(job)) >= 1, "a checkpoint was published")
        run.kill()
        run.end()
        job.gate.unlink()
        run = dumping(job)
        run.wait_for_step(5)
        job.gate.touch()
        run.signal(signal.SIGTERM)
        run.wait_for_output("SIGTERM: finishing this step")
        job.gate.unlink()
        assert run.end().code == 75
        ended = dumping(job).end()
        assert ended.code == 0 and ended.left_running == [], ended
        assert "resuming after step" in ended.stdout
        assert server.adapters() == []
    assert [step_of(job, step) for step in range(1, STEPS + 1)] == [
        step_of(in_turns, step) for step in range(1, STEPS + 1)
    ]
    steps = [row for row in ended.rows if "reward_mean" in row]
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert max(row["staleness/max"] for row in steps) == 1.0
    last = steps[-1]
    assert last["staleness/mean"] > 0 and last["correction/weight"] == pytest.approx(1.0, abs=0.5)
    # Each step but the first after a start is generated, at least in part, while the one before trained.
    assert sum(row["staleness/hidden_seconds"] > 0 for row in steps) >= STEPS - 3
    assert all(row["mean_abs_logprob_diff"] < 1e-5 for row in steps if "mean_abs_logprob_diff" in row)
    assert any("mean_abs_logprob_diff" in row for row in steps), "the first step is by its own adapter"


@pytest.mark.long
def test_a_server_that_is_killed_leaves_steps_ahead_to_another(base: Path, tmp_path: Path) -> None:
    with (
        vllm_server(base, tmp_path / "a.log", takes_adapters=True, options=TWO_ADAPTERS) as killed,
        vllm_server(base, tmp_path / "b.log", takes_adapters=True, options=TWO_ADAPTERS) as other,
    ):
        job = served(base, tmp_path / "job", [killed, other], maxStaleness=1)
        job.change(algorithm=CORRECTED)
        run = job.start()
        run.wait_for_step(2)
        kill_with_engine(killed.process.pid)
        ended = run.end()
        assert ended.code == 0, ended
        assert other.adapters() == []
    assert f"{root(killed)} cannot be reached" in warnings(ended)
    assert [row["step"] for row in ended.rows if "reward_mean" in row] == list(range(1, STEPS + 1))


@pytest.mark.long
def test_a_server_for_too_few_adapters_is_told_how_to_start(base: Path, tmp_path: Path) -> None:
    with vllm_server(base, tmp_path / "a.log", takes_adapters=True) as server:
        job = served(base, tmp_path / "job", [server], maxStaleness=2)
        job.change(algorithm=CORRECTED)
        ended = job.run()
    assert ended.code == 1 and not ended.rows, ended
    assert "generates with 1 adapter(s) at a time, expected 3" in ended.stderr, ended.stderr
    assert "--max-loras 3" in ended.stderr


def dumping(job: Job) -> Running:
    """Start a job that keeps its samples."""
    return job.start(more=["--dump-rollouts", str(job.folder / "dump")])


def step_of(job: Job, step: int) -> tuple[int, list[list[int]]]:
    """The position of the data behind a step that was dumped, and the prompts of its samples."""
    batch, described = read_step(job.folder / "dump", step)
    return described["position"], [one.tokens[: one.prompt_length].tolist() for one in batch.samples_S]


def root(server: VllmServer) -> str:
    return server.url.removesuffix("/v1")


def make_other(base: Path, folder: Path) -> None:
    """Copy a model with zeros in one tensor."""
    shutil.copytree(base, folder)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = next(name for name in sorted(header) if name.endswith("mlp.down_proj.weight"))
    start, end = (8 + length + offset for offset in header[name]["data_offsets"])
    content[start:end] = bytes(end - start)
    path.write_bytes(bytes(content))
