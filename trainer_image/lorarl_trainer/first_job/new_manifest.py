"""The texts of a first job's files: the manifest for each kind of training, a reward, an environment, example rows."""

from __future__ import annotations

import json
from typing import Any

from lorarl_api.faults import in_yaml

REWARD = '''"""The reward of a completion. `lorarl run job.yaml --dry-run` scores four rows with it."""

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
ENVIRONMENT = '''"""The environment of a job. `lorarl run job.yaml --dry-run` plays one episode of it."""

import random
import re


class Guess:
    """An episode: find a number from 1 to 20, told each time whether it is higher or lower. Each has its own object."""

    def reset(self, row):
        """Return what opens the episode: a text, or chat messages. row: a row of the data, here with a seed."""
        self.number = random.Random(row["seed"]).randint(1, 20)
        return "I think of a number from 1 to 20. Write your guess, and nothing else."

    def step(self, text):
        """Answer a turn of the model. Rewards of an episode add up; its other numbers become curves in the report."""
        found = re.search("[0-9]{1,9}", text)
        brevity = 0.01 / (1 + len(text) / 100)  # anything short earns a little
        if found is None:
            return {"text": "Write a number.", "reward": brevity, "found": 0.0}
        guess = int(found[0])
        if guess == self.number:
            return {"done": True, "reward": 1.0, "found": 1.0}
        answer = "It is higher." if guess < self.number else "It is lower."
        return {"text": answer, "reward": 0.02 + brevity, "found": 0.0}
'''
_SUMS = ((2, 3), (7, 5), (12, 9), (20, 22), (31, 8), (45, 17), (60, 29), (73, 18))
_HELD_OUT_SUMS = ((3, 6), (8, 4), (14, 11), (25, 33), (52, 16), (64, 27), (38, 45), (81, 12))
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
{algorithm}
  data:
    train: {{{train}}}
    {evaluation}{as_it_is}
  rollout:
    promptsPerStep: {prompts:<16} # {a_step}
    maxPromptTokens: {longest_prompt:<15} # {longer_prompts}
    maxResponseTokens: {response:<13} # {longer}
  trainer:
    steps: {steps:<25} # {duration}
    learningRate: {rate:<18} # LoRA takes about ten times the rate of full training
  checkpoint:
    uri: file:checkpoints            # or s3://BUCKET/FOLDER
    every: {every}
  cluster: {{gpusPerNode: {gpus}}}          # 0 trains on the CPU
"""
_AS_IT_IS = "\n    chatTemplate: false              # this base model has none: a prompt is used as it is"
PLAYED = "environment"
"""A kind of training beside the algorithms: grpo, with a class that plays and rewards episodes."""
_RATES = {"grpo": "1.0e-4", PLAYED: "1.0e-4", "sft": "2.0e-4", "dpo": "2.0e-5"}
_ALGORITHMS = {
    "grpo": "  algorithm: {{type: grpo, groupSize: {group}}}   # the completions of each prompt are compared\n"
    "  reward: {reward}",
    PLAYED: "  algorithm: {{type: grpo, groupSize: {group}}}   # the episodes of each row are compared\n"
    "  environment:\n"
    '    function: "my_env:Guess"         # the class in my_env.py, which also rewards\n'
    "    maxTurns: 6                      # of the model, in an episode\n"
    "    maxTurnTokens: 24                # a longer turn ends the episode",
    "sft": "  algorithm: {{type: sft}}           # learns the answers of the data",
    "dpo": "  algorithm: {{type: dpo}}           # learns to prefer the chosen answer to the rejected one",
}


def manifest_text(
    algorithm: str,
    *,
    name: str,
    columns: dict[str, str],
    data: str,
    held_out: str,
    is_there: bool,
    chat_template: bool,
    reward: str,
    **values: Any,
) -> str:
    """Return a manifest.

    Args:
        algorithm: `grpo`, `sft` or `dpo`, or `environment`.
        name: the job's.
        columns: the fields of the data source with columns, such as promptField.
        data: URI of the training rows.
        held_out: URI of the held-out rows.
        is_there: whether there are such rows; otherwise they are a comment.
        chat_template: whether the base model has one.
        reward: the reward, in YAML; for grpo.
        values: what else the text has.
    """
    fields = "".join(f", {field}: {in_yaml(column)}" for field, column in columns.items())
    train, rows = f"uri: {json.dumps(data)}{fields}", f"uri: {json.dumps(held_out)}{fields}"
    if algorithm == PLAYED:
        train, rows = "episodes: {size: 1000}", "episodes: {size: 16, seed: 1000}"
    evaluation = f"eval: {{{rows}, every: {values['every']}}}"
    generated = {"grpo": "completions", PLAYED: "episodes"}.get(algorithm)
    prompts, group = values["prompts"], values["group"]
    return _JOB.format(
        name=in_yaml(name),
        algorithm=_ALGORITHMS[algorithm].format(group=group, reward=reward),
        train=train,
        evaluation=evaluation if is_there else f"# {evaluation}   # rows to measure with, which are not trained on",
        as_it_is="" if chat_template else _AS_IT_IS,
        rate=_RATES[algorithm],
        a_step=f"x groupSize = {prompts * group} {generated} a step" if generated else "rows a step",
        longer_prompts="a longer opening fails" if algorithm == PLAYED else "rows with longer prompts are left out",
        longer=f"longer {generated} are cut off" if generated else "rows with longer answers are left out",
        **values,
    )


def example_rows(algorithm: str) -> tuple[str, str]:
    """Return a few rows to train on, and a few to measure with, as JSON lines."""
    return _lines(algorithm, _SUMS), _lines(algorithm, _HELD_OUT_SUMS)


def _lines(algorithm: str, sums: tuple[tuple[int, int], ...]) -> str:
    rows = []
    for a, b in sums:
        prompt = f"What is {a} plus {b}? Answer with only the number."
        answers = {"chosen": str(a + b), "rejected": "I do not know."} if algorithm == "dpo" else {"answer": str(a + b)}
        rows.append(json.dumps({"prompt": prompt, **answers}))
    return "".join(f"{row}\n" for row in rows)
