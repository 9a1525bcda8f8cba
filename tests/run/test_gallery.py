"""The five tasks of docs/gallery.md: every manifest passes the dry run with its own rows and reward."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "examples/gallery"
TASKS = sorted(path.stem for path in GALLERY.glob("*.yaml"))
LONGER = ("--set", "spec.rollout.maxPromptTokens=1024", "--set", "spec.rollout.maxResponseTokens=512")
"""The small model's tokens are single characters."""
REWARDS: dict[str, Any] = {}
exec((GALLERY / "gallery_rewards.py").read_text(), REWARDS)


class Judge(BaseHTTPRequestHandler):
    """Finds every reply equally good."""

    def do_POST(self) -> None:
        """Answer in the form of a chat completion."""
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"choices": [{"message": {"content": "It is polite.\nScore: 7"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


@pytest.fixture(scope="module")
def folder(base: Path, judge: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, base model and manifests, as after the commands of the page."""
    folder = tmp_path_factory.mktemp("gallery")
    subprocess.run([sys.executable, GALLERY / "make_data.py"], cwd=folder, check=True)
    own = folder / "out/gallery/base"
    own.mkdir()
    for file in base.iterdir():
        (own / file.name).symlink_to(file)
    config = json.loads((base / "config.json").read_text())
    (own / "config.json").unlink()
    (own / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    (folder / "gallery_rewards.py").write_text((GALLERY / "gallery_rewards.py").read_text())
    for task in TASKS:
        text = (GALLERY / f"{task}.yaml").read_text()
        (folder / f"{task}.yaml").write_text(text.replace("http://127.0.0.1:8000/v1", judge))
    return folder


def test_there_are_five_tasks_and_the_page_has_each() -> None:
    page = (ROOT / "docs/gallery.md").read_text()
    assert len(TASKS) == 5
    assert sorted(re.findall(r"\]\(\.\./examples/gallery/(\w+)\.yaml", page)) == TASKS


@pytest.mark.parametrize("task", TASKS)
def test_a_task_passes_every_check_that_needs_no_worker(folder: Path, task: str) -> None:
    command = [sys.executable, "-m", "lorarl_trainer.cli", "run", f"{task}.yaml", "--dry-run", *LONGER]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Start it with `lorarl run`" in done.stdout
    warnings = [line for line in done.stdout.splitlines() if line.startswith("warning: ")]
    unanswered = [line for line in warnings if "every completion got" not in line]
    assert unanswered == [], done.stdout


def test_an_own_answer_has_full_marks_and_parts_have_some() -> None:
    row = {"name": "Hugo Rossi", "item": "kettle", "city": "Izmir"}
    answer = json.dumps(row)
    partly = json.dumps({**row, "city": "Oslo"})
    fenced = f"Here you are:\n```json\n{json.dumps(row, indent=2)}\n```"
    extract = [REWARDS["extract"]("", said, answer, {})["score"] for said in (answer, fenced, partly, "{}", "Hugo", "")]
    assert extract == pytest.approx([1.0, 0.9, 0.8, 0.2, 0.0, 0.0])
    said = ("refund", "Refund.", "It is a refund", "refund or other", "other", "")
    classify = [REWARDS["classify"]("", text, "refund", {})["score"] for text in said]
    assert classify == [1.0, 1.0, 0.4, 0.0, 0.0, 0.0]
    prompt = "Ana asks: do you have a tip for sleeping well?"
    said = ("Ana, go to bed at the same time each day.", "GO TO BED!", "")
    assert [REWARDS["style"](prompt, text, None, {})["score"] for text in said] == pytest.approx([1.0, 1 / 3, 0.0])


def test_the_format_is_that_of_the_prompt() -> None:
    form = yaml.safe_load((GALLERY / "format.yaml").read_text())["spec"]["rewards"][0]["pattern"]
    assert re.fullmatch(form, "- Rhine\n- Nile\n- Volta", re.DOTALL)
    assert not re.fullmatch(form, "- Rhine\n- Nile", re.DOTALL)
