"""`lorarl serve --tinker` and the real client: recipes of tinker-cookbook end, and what they saved stays."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from run import make_base

CLIENT = ["tinker==0.38.0", "blobfile"]
COOKBOOK = ["tinker-cookbook==0.6.1"]
OF_COOKBOOK = ["chz", "tiktoken", "termcolor", "cloudpickle", "pyrage", "tml-renderers", "pylatexenc"]
"""What the two recipes import of the cookbook's requirements; torch, Transformers and datasets are this clone's."""
RECIPES = Path(__file__).with_name("tinker_recipes.py")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the client and its cookbook."""
    folder = tmp_path_factory.mktemp("client")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    for packages in (CLIENT, ["--no-deps", *COOKBOOK, *OF_COOKBOOK]):
        done = subprocess.run([python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"the client could not be installed: {done.stderr[-500:]}")
    (site,) = folder.glob("lib/*/site-packages")
    (site / "zz_shared.pth").write_text(sysconfig.get_path("purelib"))
    return python


@contextmanager
def served(model: Path, out: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    options = ["--rank", "8", "--max-prompt-tokens", "1024", "--max-tokens", "64", "--port", "0", "--out", str(out)]
    command = [sys.executable, "-m", "lorarl_trainer.cli", "serve", "--tinker", "--model", str(model), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if ready := re.search(r"TINKER_BASE_URL=(\S+)", line):
                break
        else:
            raise AssertionError(f"no service: {said}")
        yield ready[1], process
    finally:
        process.kill()
        process.wait()


def run(client: Path, *arguments: str) -> str:
    environment = os.environ | {"TINKER_API_KEY": "tml-none", "TINKER_TELEMETRY": "0"}
    command = [client, RECIPES, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.long
def test_recipes_run_to_their_end_and_leave_peft_adapters(
    client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, logs = tmp_path / "base", str(tmp_path)
    monkeypatch.setitem(make_base.SIZES, "max_position_embeddings", 2048)
    make_base.main(base)
    with served(base, tmp_path / "out") as (url, process):
        for which in ("rl", "sl"):
            run(client, url, str(base), logs, which)
            saved = (tmp_path / which / "checkpoints.jsonl").read_text().splitlines()
            path = json.loads(saved[-1])["state_path"]
            folder = tmp_path / "out/saved" / path.removeprefix("tinker://").replace(":", "-")
            assert (folder / "lora_adapter/adapter_config.json").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
