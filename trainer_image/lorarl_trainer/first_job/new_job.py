"""`lorarl init`: the files of a first job, made from a few answers."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.first_job.first_run import USUAL, FirstRun, first_run, usual_run
from lorarl_trainer.first_job.new_data import PROMPT_AND_ANSWER, Sample, beside
from lorarl_trainer.first_job.new_manifest import ENVIRONMENT, PLAYED, REWARD, example_rows, manifest_text
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.duration import arithmetic_speed
from lorarl_trainer.storage.downloads import local_path, read_model_config

MANIFEST, DATA_FILE, HELD_OUT_FILE = "job.yaml", "train.jsonl", "held_out.jsonl"
REWARD_FILE, ENVIRONMENT_FILE = "my_reward.py", "my_env.py"
OWN_REWARD = "function"
REWARDS = {
    "exact": "1 if the stripped completion is the answer, otherwise 0",
    "numeric": "1 if the completion's last number is the answer's last number, otherwise 0",
    "math_verify": "1 if the completion is mathematically equal to the answer, otherwise 0",
    OWN_REWARD: f"your own Python function, in {REWARD_FILE}",
}
"""The rewards that can be chosen, in words."""
ALGORITHMS = {
    "grpo": "from a reward: your function, or a comparison with the answer",
    "sft": "from answers, or from whole conversations",
    "dpo": "from pairs of a better and a worse answer",
}
"""What a model can learn from, in words."""
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
"""Where a model may have its chat template, besides tokenizer_config.json."""
_LONGEST_GENERATED, _CONVERSATION, _EPISODE = 64, 256, 128
"""Tokens: of completions in a first run on a CPU, whatever the answers have; and for conversations and episodes."""


@dataclass(frozen=True)
class NewJob:
    """What a new job is made of.

    Attributes:
        model: URI of the base model.
        data: URI of the rows; None writes a few as an example.
        reward: a key of `REWARDS`; for grpo.
        columns: the data's, by the field of the data source.
        algorithm: a key of `ALGORITHMS`.
        environment: whether a class plays and rewards episodes, in place of data and reward.
        held_out: URI of rows to measure with; None if there are none yet.
        gpus: of this machine that the job uses.
        positions: tokens that the base model can see at once, if that is known.
        chat_template: whether the base model has one.
        longest_prompt: about how many tokens the longest prompt has; 0 if that is not known.
        size: how much its first run does.
    """

    name: str
    model: str
    data: str | None
    reward: str
    columns: Mapping[str, str] = field(default_factory=lambda: dict(PROMPT_AND_ANSWER))
    algorithm: str = "grpo"
    environment: bool = False
    held_out: str | None = None
    gpus: int = 0
    positions: int | None = None
    chat_template: bool = True
    longest_prompt: int = 0
    size: FirstRun = USUAL

    def files(self) -> dict[str, str]:
        """Return the content of each file to write, by name."""
        function = f'{{function: "{Path(REWARD_FILE).stem}:score"}}'
        reward = function if self.reward == OWN_REWARD else f"{{type: {self.reward}}}"
        size, data = self.size, self.data or f"file:{DATA_FILE}"
        response = min(size.response, self.positions // 2) if self.positions else size.response
        job = manifest_text(
            PLAYED if self.environment else self.algorithm,
            columns=dict(self.columns),
            data=data,
            held_out=self.held_out or (beside(data) if self.data else f"file:{HELD_OUT_FILE}"),
            is_there=self.held_out is not None or self.data is None,
            chat_template=self.chat_template,
            reward=f"{reward}   # {REWARDS[self.reward]}",
            longest_prompt=self._prompt_limit(response),
            manifest=MANIFEST,
            name=self.name,
            model=json.dumps(self.model),
            prompts=size.prompts,
            group=size.group,
            response=response,
            steps=size.steps,
            every=size.every,
            duration=size.duration,
            gpus=self.gpus,
        )
        if self.environment:
            return {MANIFEST: job, ENVIRONMENT_FILE: ENVIRONMENT}
        train, held_out = example_rows(self.algorithm)
        return {
            MANIFEST: job,
            **({REWARD_FILE: REWARD} if self.algorithm == "grpo" and self.reward == OWN_REWARD else {}),
            **({} if self.data else {DATA_FILE: train, HELD_OUT_FILE: held_out}),
        }

    def _prompt_limit(self, response: int) -> int:
        """Return a limit with room for longer prompts than those seen, if any were: a power of two from 64 to 512."""
        room = max(64, 1 << (2 * self.longest_prompt - 1).bit_length()) if self.longest_prompt else 512
        return min(512, room, self.positions - response) if self.positions else min(512, room)

    def load(self) -> LoRARLJobSpec:
        """Return the job's spec, as it will be read from its manifest.

        Raises:
            ManifestError: an answer cannot be used.
        """
        return load_job(self.files()[MANIFEST]).spec


def sized(job: NewJob, sample: Sample) -> NewJob:
    """Return the job with a size that this machine trains in some minutes, as far as its model's size is known here."""
    from_data = job.algorithm != "grpo"
    longest = sample.answer_tokens if from_data else min(sample.answer_tokens, _LONGEST_GENERATED)
    if "messagesField" in job.columns:
        longest = _CONVERSATION
    if job.environment:
        longest = _EPISODE
    if job.gpus or not job.model.startswith("file:"):
        return replace(job, size=usual_run(from_data=from_data, on_gpu=bool(job.gpus), answer_tokens=longest))
    size = first_run(
        lambda size: replace(job, size=size).load(),
        sizes_of(read_model_config(local_path(job.model, "--model"))),
        arithmetic_speed(),
        from_data=from_data,
        prompt_tokens=sample.prompt_tokens,
        answer_tokens=longest,
    )
    return replace(job, size=size)


def advice(job: NewJob, columns: Sequence[str]) -> list[str]:
    """Return what to know about a new job: its first run's size, what its reward lacks, and rows to measure with.

    `columns`: of its data, as far as they are known.
    """
    size, lines = job.size, []
    if size.seconds is not None:
        each = f"{size.prompts} rows"
        if job.algorithm == "grpo":
            generated = "episodes" if job.environment else "completions"
            each += f" with {size.group} {generated} of at most {size.response} tokens"
        lines.append(
            f"\nThe first run has {size.steps} steps of {each}: {size.duration}.\n"
            "Once it learns something, raise trainer.steps and rollout.maxResponseTokens. Both cost time in proportion."
        )
    if job.data and job.reward == OWN_REWARD and job.algorithm == "grpo" and "answerField" not in job.columns:
        others = ", ".join(column for column in columns if column not in job.columns.values())
        lines.append(
            f"\nThe data has no column with answers, so the example in {REWARD_FILE} only prefers short completions.\n"
            f"Write your own rule there{f'. `row` has {others}' if others else ''}. "
            "Or name the column: --answer-field COLUMN."
        )
    if job.data and job.held_out is None:
        first, *commands = _splitting(job.data)
        lines.append(f"\nNo held-out rows were found, so nothing would be measured. Name them (--held-out), or {first}")
        lines += [f"  {command}" for command in commands]
    return lines


def _splitting(data: str) -> list[str]:
    if not (data.startswith("file:") and data.endswith(".jsonl")):
        where = "name another split" if data.startswith("hf://") else f"move some rows into {beside(data)}"
        return [f"{where}, and remove the # before eval in {MANIFEST}."]
    path, held_out = (local_path(uri, "--data") for uri in (data, beside(data)))
    train = path.with_name(f"train_{path.name}")
    return [
        "split:",
        f"head -n 64 {shlex.quote(str(path))} > {shlex.quote(str(held_out))}",
        f"tail -n +65 {shlex.quote(str(path))} > {shlex.quote(str(train))}",
        f"and in {MANIFEST} set data.train to {train.name}, and remove the # before eval",
    ]


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


def has_chat_template(uri: str) -> bool:
    """Return whether a base model has a chat template; True if it is not on this machine."""
    if not uri.startswith("file:"):
        return True
    folder = local_path(uri, "--model")
    if any((folder / name).exists() for name in _TEMPLATES):
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template"))
    except (OSError, ValueError):
        return True  # `lorarl validate` and the dry run say what is wrong with the tokenizer


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write new files to a folder.

    Raises:
        InputError: one of them exists, or the folder cannot be written; nothing was written.
    """
    if there := [name for name in files if (folder / name).exists()]:
        got = f"{'this folder' if folder == Path() else folder}, which contains {', '.join(there)}"
        hint = f"Name a new folder, or move {' and '.join(there)} away: nothing is overwritten."
        raise InputError("FOLDER", got, "a folder without such a file", hint)
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
