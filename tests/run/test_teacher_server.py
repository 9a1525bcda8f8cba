"""`lorarl run` with a teacher behind a real server: vLLM's own, on the CPU, with the adapter that is the teacher."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from run.command import Ended
from run.jobs import Job
from run.test_distillation import taught

START_SECONDS = 240.0


@pytest.fixture
def teacher_url(base: Path, reference_job: Job, reference: Ended, tmp_path: Path) -> Iterator[str]:
    """The base with the reference job's adapter, served as `teacher`."""
    adapter = reference_job.folder / reference.summary["adapter_uri"].removeprefix("file:")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("vllm"), "serve", str(base), "--port", str(port), "--dtype", "float32"]
    limits = ["--max-model-len", "128", "--max-num-seqs", "32", "--enforce-eager"]
    lora = ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"teacher={adapter}"]
    log = (tmp_path / "vllm.log").open("wb")
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    process = subprocess.Popen(
        [*command, *limits, *lora], stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    )
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
    try:
        while not _answers(f"{url}/health"):
            assert process.poll() is None and time.monotonic() < until, (tmp_path / "vllm.log").read_text()[-3000:]
            time.sleep(0.5)
        yield f"{url}/v1"
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.long
def test_a_server_teaches_as_its_adapter_does(
    teacher_url: str, reference_job: Job, reference: Ended, base: Path, tmp_path: Path
) -> None:
    """Both kinds of the same teacher give the same divergence, step by step, up to rounding."""
    server = taught(reference_job, reference, base, tmp_path / "server", steps=4)
    server.change(algorithm={"distillation": {"server": {"url": teacher_url, "model": "teacher"}}})
    adapter = taught(reference_job, reference, base, tmp_path / "adapter", steps=4)
    ended = [job.run() for job in (server, adapter)]
    assert [one.code for one in ended] == [0, 0], ended
    by_server, by_adapter = ([row["teacher/kl"] for row in one.rows if "teacher/kl" in row] for one in ended)
    assert by_server == pytest.approx(by_adapter, rel=1e-3, abs=1e-4)
    assert all(row["teacher/scored_share"] == 1.0 for row in ended[0].rows if "teacher/kl" in row)
