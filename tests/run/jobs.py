"""A small job on disk: manifest, data and reward function in a folder, as a user has them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from run.command import Ended, Running, digest
from support.both_backends import BACKEND

NAME = "letters"
STEPS = 16
EVERY = 2
"""Steps between checkpoints."""
REWARD = Path(__file__).with_name("letters.py")
PROMPTS = ["say a word", "tell me more", "what is this", "sing", "name a letter", "and now?", "again", "go on"]


def manifest(base: Path) -> dict[str, Any]:
    """A few seconds of training. The paths of data and checkpoints are relative to the working directory."""
    return {
        "apiVersion": "lorarl.io/v1alpha1",
        "kind": "LoRARLJob",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"uri": f"file://{base}"},
            "adapter": {"rank": 4, "alpha": 8, "targetModules": ["all-linear"]},
            "algorithm": {"type": "grpo", "groupSize": 4},
            "reward": {"function": "letters:score", "timeoutSeconds": 120.0},
            "data": {"train": {"uri": "file:train.jsonl"}, "eval": {"uri": "file:held_out.jsonl", "every": 5}},
            "rollout": {"promptsPerStep": 4, "maxPromptTokens": 64, "maxResponseTokens": 12},
            "trainer": {"steps": STEPS, "learningRate": 5.0e-3},
            "checkpoint": {"uri": "file:checkpoints", "every": EVERY, "keep": STEPS},
        },
    }


@dataclass
class Job:
    """A folder with the manifest, and a shell in it, as a user has them."""

    folder: Path
    base: Path
    environment: dict[str, str] = field(default_factory=dict)
    backend: str = BACKEND

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "job.yaml").write_text(yaml.safe_dump(manifest(self.base)))
        if self.backend != BACKEND:
            self.change(trainer={"backend": self.backend})
        self.write_rows({"prompt": prompt} for prompt in PROMPTS)
        (self.folder / "held_out.jsonl").write_text(json.dumps({"prompt": "and what else"}) + "\n")
        shutil.copy(REWARD, self.folder)

    @property
    def out(self) -> Path:
        return self.folder / "out" / NAME

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints" / NAME

    @property
    def gate(self) -> Path:
        """While this file exists, the run stands still within a step."""
        return self.folder / "gate"

    def change(self, **parts: Mapping[str, Any] | None) -> None:
        """Change fields of the manifest's spec: change(trainer={"steps": 3}). None removes a part."""
        path = self.folder / "job.yaml"
        changed = yaml.safe_load(path.read_text())
        for part, fields in parts.items():
            if fields is None:
                changed["spec"].pop(part)
            else:
                changed["spec"].setdefault(part, {}).update(fields)
        path.write_text(yaml.safe_dump(changed))

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        (self.folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write_secret(self, name: str, values: Mapping[str, str]) -> None:
        folder = self.folder / "secrets" / name
        folder.mkdir(parents=True)
        for key, value in values.items():
            (folder / key).write_text(value)
        self.environment["LORARL_SECRETS_DIR"] = str(folder.parent)

    def start(
        self,
        *overrides: str,
        terminal: bool = False,
        out: Path | None = None,
        through: Sequence[str] = (),
        gated: bool = True,
        more: Sequence[str] = (),
    ) -> Running:
        """Start `lorarl run job.yaml`, with `--set spec.` before each of `overrides`.

        Args:
            terminal: whether it runs in its own terminal.
            out: another folder for its output.
            through: a command that starts it, such as taskset.
            gated: whether it stands still at the gate.
            more: other options of the command.
        """
        arguments = ["job.yaml", *more, *(part for change in overrides for part in ("--set", f"spec.{change}"))]
        if out is not None:
            arguments += ["--out", str(out)]
        environment = {**os.environ, **self.environment, "LETTERS_GATE": str(self.gate) if gated else ""}
        return Running(arguments, self.folder, out or self.out, environment, terminal=terminal, through=through)

    def run(self, *overrides: str) -> Ended:
        """Run it to its end."""
        return self.start(*overrides).end()

    def contents(self) -> dict[str, str]:
        """The digest of every file in the folder, except for those that every start writes."""
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        return {
            str(path.relative_to(self.folder)): digest(path)
            for path in files
            if path.name not in ("stdout.txt", "stderr.txt", "events.jsonl", "run.lock")
        }


def published(job: Job) -> list[str]:
    """The folders of the checkpoints that latest.json lists, the newest last; none before there is one."""
    latest = job.checkpoints / "latest.json"
    return list(json.loads(latest.read_text())["checkpoints"]) if latest.exists() else []


def published_steps(checkpoints: Path) -> list[int]:
    """The steps that latest.json lists, the newest last. All their files are checked, with only json and hashlib."""
    latest = json.loads((checkpoints / "latest.json").read_text())
    steps = []
    for folder in latest["checkpoints"]:
        description = json.loads((checkpoints / folder / "checkpoint.json").read_text())
        for path, expected in description["files"].items():
            assert digest(checkpoints / folder / path) == expected["sha256"], f"{folder}/{path} is not what was written"
        steps.append(description["step"])
    assert steps[-1] == latest["step"]
    return steps


def spoil_model(model: Path) -> None:
    """Make a folder into one that only the workers find out about: a weight is twice as long as its type says."""
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"F16"', 1))
