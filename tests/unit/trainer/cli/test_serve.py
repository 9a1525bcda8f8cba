"""What `lorarl serve` refuses before anything is loaded."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lorarl_trainer.cli.serve import command
from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.trained_adapters.serving.own_server import Settings, cpu_cache_bytes
from lorarl_trainer.trained_adapters.serving.serve import free_port, serve
from lorarl_trainer.trained_adapters.serving.subject import Request, published


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Name an ADAPTER or a run to serve, or --tinker"),
        (["sums", "--tinker"], "Name an ADAPTER or a run to serve, or --tinker"),
        (["--tinker"], "Missing option '--model'"),
        (["sums", "--model", "org/base"], "--model is for --tinker"),
        (["sums", "--rank", "8"], "--rank is for --tinker"),
        (["--tinker", "--model", "m", "--checkpoint", "best"], "--checkpoint is for an ADAPTER"),
        (["sums", "--checkpoint", "last"], "none of best, newest, or the number of a step"),
    ],
)
def test_options_of_the_other_kind_are_refused(words: Sequence[str], said: str) -> None:
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 2 and said in done.output


def settings(*more: str) -> Settings:
    return Settings("org/base", "org/base", None, "auto", 12, 6, "127.0.0.1", 8000, on_gpu=True, more=more)


def test_the_server_takes_adapters_of_the_runs_rank() -> None:
    words = settings("--max-model-len", "4096").command()
    assert words[words.index("--max-lora-rank") + 1] == "16" and words[-2:] == ["--max-model-len", "4096"]


@pytest.mark.parametrize("option", ["--port", "--max-loras=9", "--max_lora_rank", "--served-model-name"])
def test_options_that_lorarl_sets_are_not_given_to_vllm_twice(option: str) -> None:
    with pytest.raises(InputError, match=r"--: got --[a-z-]+, which lorarl serve sets itself"):
        settings(option, "9").command()


GB = 10**9


@pytest.mark.parametrize(
    ("weights", "free", "environment", "expected"),
    [
        (2 * GB, 12 * GB, {}, 4 * GB),
        (2 * GB, 4 * GB, {}, 2**30),  # too little: vLLM says what it needs
        (2 * GB, 12 * GB, {"VLLM_CPU_KVCACHE_SPACE": "3"}, None),
    ],
)
def test_on_a_cpu_the_cache_leaves_room_for_the_model_and_other_programs(
    weights: int, free: int, environment: dict[str, str], expected: int | None
) -> None:
    assert cpu_cache_bytes(weights, free, environment) == expected


@pytest.mark.parametrize(
    ("more", "is_set"),
    [((), True), (("--gpu-memory-utilization=0.5",), False), (("--kv_cache_memory_bytes", "9"), False)],
)
def test_options_of_the_user_say_how_much_memory_the_cache_takes(more: tuple[str, ...], is_set: bool) -> None:
    words = replace(settings(*more), cache_bytes=5 * GB).command()
    assert (str(5 * GB) in words) is is_set


def request(name: str, host: str = "127.0.0.1") -> Request:
    return Request(name, None, (), None, None, 4, host, 0, None, ())


def test_other_machines_need_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(InputError, match=r"--host: got 0.0.0.0 without VLLM_API_KEY, .*Set VLLM_API_KEY"):
        serve(request("sums", "0.0.0.0"), print)


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LorarlError, match=f"--port {port}: Address already in use. Name another port"):
            free_port("127.0.0.1", port)
    assert free_port("127.0.0.1", 0) > 0


def test_what_is_no_adapter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="ADAPTER: got sums, which is not a folder"):
        serve(request("sums"), print)


@pytest.mark.parametrize(
    ("summary", "there"),
    [
        ({"state": "running", "adapter_uri": None}, False),
        ({"state": "running", "adapter_uri": "file:///a"}, True),
        ({"state": "succeeded", "adapter_uri": None}, True),
    ],
)
def test_a_run_that_trains_is_waited_for(tmp_path: Path, summary: dict[str, str | None], there: bool) -> None:
    (tmp_path / "run_summary.json").write_text(json.dumps(summary))
    assert published(str(tmp_path)) is there
