"""`lorarl run` whose completions are made by `vllm serve`, which somebody else started: vLLM's own, on loopback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from run.command import Ended, kill_with_engine
from run.jobs import Job
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
