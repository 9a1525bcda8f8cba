"""`lorarl serve RUN`: a real run's adapters in a real vLLM server, which follows further checkpoints."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load, save

from lorarl_trainer.checkpoint import Checkpoint, CheckpointStore
from lorarl_trainer.checkpoint.contents import ADAPTER_CONFIG, ADAPTER_METADATA, ADAPTER_MODEL, STATE, to_json
from lorarl_trainer.storage import LocalStore
from run.command import PATIENCE_SECONDS, Ended
from run.jobs import NAME, Job

SMALL = ["--enforce-eager", "--max-model-len", "256", "--max-num-batched-tokens", "256", "--max-num-seqs", "64"]
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


class Serving:
    """The command under way, and what it has said."""

    def __init__(self, subject: str, out: Path, *options: str) -> None:
        command = [sys.executable, "-m", "lorarl_trainer.cli", "serve", subject, "--port", "0", "--out", str(out)]
        self.log = out / "vllm.log"
        self.process = subprocess.Popen(
            [*command, *options, "--", *SMALL],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self.lines.append("")
            self._changed.notify_all()

    def says(self, text: str) -> str:
        """Wait for a line with this text."""

        def found() -> str | None:
            line = next((line for line in self.lines if text in line), None)
            assert line or "" not in self.lines, f"it ended without {text!r}: {self.lines}"
            return line

        with self._changed:
            line = self._changed.wait_for(found, PATIENCE_SECONDS)
        assert line, (text, self.lines, self.log.read_text()[-3000:])
        return line

    @property
    def url(self) -> str:
        return self.says("ready").split()[1]

    def ask(self, model: str, **options: Any) -> dict[str, Any]:
        """Return its answer to a request in OpenAI's form."""
        body = json.dumps({"model": model, "prompt": "say a word", "max_tokens": 16, "temperature": 0, **options})
        request = urllib.request.Request(f"{self.url}/completions", body.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return dict(json.load(answer))

    def models(self) -> list[str]:
        with urllib.request.urlopen(f"{self.url}/models", timeout=PATIENCE_SECONDS) as answer:
            return [card["id"] for card in json.load(answer)["data"]]

    def ctrl_c(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def serving(subject: str, out: Path, *options: str) -> Iterator[Serving]:
    service = Serving(subject, out, *options)
    try:
        yield service
    finally:
        service.process.kill()  # the server ends with it
        service.process.wait()


@pytest.mark.long
def test_a_run_is_served_by_lines_that_can_be_copied(reference: Ended, reference_job: Job, tmp_path: Path) -> None:
    del reference_job
    with serving(str(reference.out), tmp_path / "serve", "--versions", "1") as service:
        assert "letters is letters-step-16" in service.says("now  ")
        printed = shlex.split(service.says("curl").partition(" ")[2])
        answer = json.loads(subprocess.run(printed, capture_output=True, check=True).stdout)
        said = answer["choices"][0]
        assert said["message"]["content"] if "/chat/" in printed[1] else said["text"]
        assert answer["model"].startswith(f"{NAME}-step-16@")
        assert service.models()[1:] == [NAME, f"{NAME}-step-16"]
        ours = psutil.Process(service.process.pid).children(recursive=True)
        assert len(ours) > 1
        assert service.ctrl_c() == 0, service.lines
        assert psutil.wait_procs(ours, timeout=10)[1] == []


class Published:
    """A job's folder, in which checkpoints of a real run appear, and such as no run writes."""

    def __init__(self, folder: Path, of: Path) -> None:
        self.store, self.folder = LocalStore(folder), folder / NAME
        self._of, self._step = of, 0
        self._writer = CheckpointStore(self.store, NAME, keep=20, identity={})
        self._writer.start("Never")

    def publish(self, of_step: int, change: Callable[[Checkpoint], Checkpoint] = lambda one: one) -> str:
        """Publish a checkpoint of the run as the next one, changed; return its name."""
        self._step += 1
        files = {
            path: (self._of / f"iter_{of_step:07d}" / path).read_bytes()
            for path in (ADAPTER_CONFIG, ADAPTER_METADATA, ADAPTER_MODEL, STATE)
        }
        self._writer.publish(change(Checkpoint(self._step, self._step, files)))
        return f"{NAME}-step-{self._step}"

    def break_newest(self) -> None:
        weights = self.folder / f"iter_{self._step:07d}" / ADAPTER_MODEL
        weights.write_bytes(weights.read_bytes()[:-1])


def tensors(change: Callable[[str, Any], Any]) -> Callable[[Checkpoint], Checkpoint]:
    def changed(one: Checkpoint) -> Checkpoint:
        of_file = {name: change(name, data) for name, data in load(bytes(one.files[ADAPTER_MODEL])).items()}
        return replace(one, files={**one.files, ADAPTER_MODEL: save(of_file)})

    return changed


def content(path: str, **values: Any) -> Callable[[Checkpoint], Checkpoint]:
    def changed(one: Checkpoint) -> Checkpoint:
        return replace(one, files={**one.files, path: to_json({**json.loads(bytes(one.files[path])), **values})})

    return changed


def without_effect(name: str, data: Any) -> Any:
    return np.zeros_like(data) if "lora_B" in name else data


def wider(name: str, data: Any) -> Any:
    return np.concatenate([data] * 4, axis=0 if "lora_A" in name else 1)


def all_of(changes: Sequence[Callable[[Checkpoint], Checkpoint]]) -> Callable[[Checkpoint], Checkpoint]:
    def changed(one: Checkpoint) -> Checkpoint:
        for change in changes:
            one = change(one)
        return one

    return changed


@pytest.mark.long
def test_a_service_follows_a_run_and_takes_nothing_that_is_wrong(reference: Ended, tmp_path: Path) -> None:
    """In one service: 50 requests are always under way, and none fails."""
    of = Path(reference.adapter_uri.removeprefix("file://")).parents[1]
    published = Published(tmp_path / "store", of)
    first = published.publish(2)
    stop = threading.Event()

    def asks(service: Serving) -> set[str]:
        answered = set()
        while not stop.is_set():
            answer = service.ask(NAME, max_tokens=64, ignore_eos=True)
            assert answer["usage"]["completion_tokens"] == 64
            answered.add(answer["model"].partition("@")[0])
        return answered

    with (
        serving(str(published.folder), tmp_path / "serve", "--versions", "2") as service,
        ThreadPoolExecutor(50) as pool,
    ):
        assert first in service.says("now  ")
        users = [pool.submit(asks, service) for _ in range(50)]
        try:
            for change, reason in {
                tensors(without_effect): "it changes nothing",
                content(ADAPTER_METADATA, baseModelFingerprint="0", baseModel="org/other"): "another base model",
                all_of([tensors(wider), content(ADAPTER_CONFIG, r=16, lora_alpha=32)]): "its rank is 16",
                content(ADAPTER_CONFIG, use_dora=True): "use_dora: True",
                content(ADAPTER_CONFIG, lora_bias=True): "lora_bias: True",
                content(ADAPTER_CONFIG, alora_invocation_tokens=[5]): "alora_invocation_tokens",
            }.items():
                wrong = published.publish(16, change)
                assert reason in service.says(f"refused   {wrong} is not served")
            second = published.publish(8)
            service.says(f"{NAME} is {second}")
            third = published.publish(16)
            service.says(f"{NAME} is {third}")
            assert service.ask(NAME)["model"].startswith(f"{third}@")
        finally:
            stop.set()
        answered = set().union(*(user.result() for user in users))
        assert {first} <= answered <= {first, second, third}
        assert service.ctrl_c() == 0
