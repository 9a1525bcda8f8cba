"""`lorarl init`: the files of a first job, made from a few answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from lorarl_trainer.data.files import read_file
from lorarl_trainer.errors import InputError
from lorarl_trainer.storage.downloads import local_path, read_model_config

MANIFEST, REWARD_FILE, DATA_FILE, HELD_OUT_FILE = "job.yaml", "my_reward.py", "train.jsonl", "held_out.jsonl"
OWN_REWARD = "function"
REWARDS = {
    "exact": "1 if the stripped completion is the answer, otherwise 0",
    "numeric": "1 if the completion's last number is the answer's last number, otherwise 0",
    "math_verify": "1 if the completion is mathematically equal to the answer, otherwise 0",
    OWN_REWARD: f"your own Python function, in {REWARD_FILE}",
}
"""The rewards that can be chosen, in words."""
PROMPTS = ("prompt", "question", "messages", "problem", "instruction", "input", "query", "text")
ANSWERS = ("answer", "solution", "response", "output", "target", "completion", "label", "ground_truth")
"""Usual names of columns, the likeliest first."""

_REWARD = '''"""The reward of a completion. `lorarl run job.yaml --dry-run` scores four rows with it."""

import re


def score(prompt, completion, answer, row):
    """Score one completion; only the difference between completions of one prompt teaches anything.

    prompt: as in the data. completion: the model's text. answer: the row's answer, or None. row: the whole row.
    Return a number, or a mapping with "score". Its other numbers become curves in the report.
    """
    said, wanted = completion.strip().lower(), str(answer or "").strip().lower()
    right = bool(wanted) and said == wanted
    close = bool(wanted) and re.search(rf"(?<!\\w){re.escape(wanted)}(?!\\w)", said) is not None
    # The exact answer earns 1, an answer somewhere in a longer text 0.5, and anything short a little.
    brevity = 1 / (1 + len(said) / 100)
    score = float(right) or 0.5 * close or 0.1 * brevity * bool(said)
    return {"score": score, "right": float(right), "brevity": brevity}
'''
_ROWS = [{"prompt": f"What is {a} plus {b}? Answer with only the number.", "answer": str(a + b)}
         for a, b in ((2, 3), (7, 5), (12, 9), (20, 22), (31, 8), (45, 17), (60, 29), (73, 18))]  # fmt: skip
_JOB = """\
# Run `lorarl run {manifest} --dry-run` first, then `lorarl run {manifest}`.
# docs/reference.md lists every field. Paths are relative to the folder in which you start the command.
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata:
  name: {name:<26} # a new name starts a new training; the same name resumes
spec:
  model: {{uri: {model}}}
  adapter:
    rank: 16
    alpha: 32
    targetModules: [all-linear]
  algorithm: {{type: grpo, groupSize: 8}}   # eight completions of each prompt are compared
  reward: {reward}
  data:
    train: {{uri: {data}, promptField: {prompt}, answerField: {answer}}}
    # eval: {{uri: {held_out}, every: 10}}   # rows that are not trained on, evaluated every 10 steps
  rollout:
    promptsPerStep: 8                # x groupSize = 64 completions a step
    maxPromptTokens: {longest_prompt:<15} # rows with longer prompts are left out
    maxResponseTokens: {response:<13} # longer completions are cut off
  trainer:
    steps: {steps}
    learningRate: 1.0e-4             # LoRA takes about ten times the rate of full training
  checkpoint:
    uri: file:checkpoints            # or s3://BUCKET/FOLDER
    every: 10
  cluster: {{gpusPerNode: {gpus}}}          # 0 trains on the CPU
"""


@dataclass(frozen=True)
class NewJob:
    """What a new job is made of.

    Attributes:
        name: of the job.
        model: URI of the base model.
        data: URI of the rows; None writes a few as an example.
        reward: a key of `REWARDS`.
        prompt, answer: the data's columns.
        gpus: of this machine that the job uses.
        positions: tokens that the base model can see at once, if that is known.
    """

    name: str
    model: str
    data: str | None
    reward: str
    prompt: str = "prompt"
    answer: str = "answer"
    gpus: int = 0
    positions: int | None = None

    def files(self) -> dict[str, str]:
        """Return the content of each file to write, by name."""
        function = f'{{function: "{Path(REWARD_FILE).stem}:score"}}'
        reward = function if self.reward == OWN_REWARD else f"{{type: {self.reward}}}"
        response = 512 if self.gpus else 64
        data = self.data or f"file:{DATA_FILE}"
        held_out = re.sub(r"[^/:]+$", HELD_OUT_FILE, data) if data.startswith("file:") else f"file:{HELD_OUT_FILE}"
        job = _JOB.format(
            longest_prompt=min(512, self.positions - response) if self.positions else 512,
            manifest=MANIFEST,
            name=self.name,
            model=json.dumps(self.model),
            reward=f"{reward}   # {REWARDS[self.reward]}",
            data=json.dumps(data),
            held_out=json.dumps(held_out),
            prompt=self.prompt,
            answer=self.answer,
            response=response,
            steps=200 if self.gpus else 50,
            gpus=self.gpus,
        )
        rows = "".join(json.dumps(row) + "\n" for row in _ROWS)
        return {
            MANIFEST: job,
            **({REWARD_FILE: _REWARD} if self.reward == OWN_REWARD else {}),
            **({} if self.data else {DATA_FILE: rows}),
        }


def model_uri(model: str) -> str:
    """Return a model as a URI: a folder on this machine, a URI as it is, or ORG/NAME on the hub."""
    if "://" in model or model.startswith("file:"):
        return model
    if Path(model).is_dir():
        return f"file://{Path(model).absolute()}"  # a link keeps its name: what it points to may be a cache
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not model.startswith("."):
        return f"hf://{model}"
    raise InputError(
        "--model", model, "a folder with a model, or ORG/NAME on the Hugging Face hub", "Check the path or the name."
    )


def positions_of(uri: str) -> int | None:
    """Return how many tokens a model on this machine can see at once; None if that is not known."""
    if not uri.startswith("file:"):
        return None
    found = read_model_config(local_path(uri, "--model")).get("max_position_embeddings")
    return found if isinstance(found, int) else None


def data_uri(data: str, folder: Path) -> str:
    """Return a data source as a URI: a file on this machine, or a URI as it is.

    A file keeps its relative path if the job is run where it was named.
    """
    if "://" in data or data.startswith("file:"):
        return data
    return f"file:{data}" if folder.resolve() == Path.cwd() else f"file://{Path(data).resolve()}"


def columns_of(uri: str) -> list[str]:
    """Return the columns of a data file on this machine, by its first rows; empty for data elsewhere.

    Raises:
        InputError: the file cannot be read.
    """
    if not uri.startswith("file:"):
        return []
    rows = read_file(uri, field="--data", fetch=lambda name: local_path(name, "--data"), text_columns=())
    return list(dict.fromkeys(key for _, row in islice(rows, 20) for key in row))


def choose_fields(columns: Sequence[str], prompt: str | None, answer: str | None) -> tuple[str, str]:
    """Return the columns with the prompt and the answer: those that are named, or else the likeliest ones.

    Raises:
        InputError: a column that is not named has no usual name.
    """
    chosen = {"prompt": prompt or _likeliest(columns, PROMPTS), "answer": answer or _likeliest(columns, ANSWERS)}
    unknown = [field for field, column in chosen.items() if column is None]
    if not unknown:
        return str(chosen["prompt"]), str(chosen["answer"])
    free = [column for column in columns if column not in chosen.values()]
    example = " ".join(f"--{field}-field {column}" for field, column in zip(unknown, free, strict=False))
    raise InputError(
        " and ".join(f"--{field}-field" for field in unknown),
        f"nothing, and data with the columns {', '.join(columns)}",
        " and ".join(f"the column with the {field}" for field in unknown),
        f"Name them, for example {example}." if example else "Check the data.",
    )


def _likeliest(columns: Sequence[str], usual: Sequence[str]) -> str | None:
    """Return the first column with a usual name; the most usual name where the columns are not known."""
    by_name = {column.lower(): column for column in columns or usual[:1]}
    return next((by_name[name] for name in usual if name in by_name), None)


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write new files to a folder.

    Raises:
        InputError: one of them exists, or the folder cannot be written; nothing was written.
    """
    if there := [name for name in files if (folder / name).exists()]:
        raise InputError(
            "FOLDER", f"{folder}, which contains {', '.join(there)}", "a folder without them", "Name a new folder."
        )
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                written.append(folder / name)
                file.write(content)
    except OSError as error:
        for path in written:
            path.unlink()
        got = f"{folder}, which cannot be written ({error.strerror})"
        raise InputError("FOLDER", got, "a folder of yours", "Name another folder.") from error
    return written


def job_name(folder: Path) -> str:
    """Return a job's name made of a folder's: letters, digits and dashes."""
    name: Any = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    return name[:40].strip("-") if name and name[0].isalpha() else "my-job"
