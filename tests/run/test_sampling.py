"""A run with its own chat template, truncated sampling, a stop text, two evaluations and a schedule."""

from __future__ import annotations

import hashlib
import json

import pytest

from run.command import local_folder
from run.jobs import Job, published_steps

VOWELS = "aeiou"
TEMPLATE = "{% for m in messages %}[{{ m.content }}]{% endfor %}"


@pytest.mark.long
def test_sampling_evaluations_and_schedule_work_together(job: Job) -> None:
    (job.folder / "hard.jsonl").write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in ("one", "two", "six"))
    )
    hard = {"name": "hard", "uri": "file:hard.jsonl", "every": 2, "temperature": 1.0, "samples": 4, "passAtK": [1, 4]}
    (job.folder / "own.jinja").write_text(TEMPLATE)
    job.change(
        data={
            "chatTemplateFile": "file:own.jinja",
            "evals": [hard | {"passReward": 0.1, "reward": {"function": "letters:score"}}],
        },
        rollout={"topP": 0.9, "topK": 20, "stop": list(VOWELS)},
        checkpoint={"every": 100, "keep": 1, "keepBest": {"eval": "hard", "passAtK": 4}},
        trainer={"steps": 3, "learningRateSchedule": "linear", "minLearningRateShare": 0.5},
    )
    ended = job.run()
    assert ended.code == 0, ended
    steps = ended.rows[1:]
    assert [row["learning_rate"] for row in steps] == pytest.approx([5e-3, 3.75e-3, 2.5e-3])
    assert all(row["mean_abs_logprob_diff"] < 1e-5 for row in steps)
    samples = [json.loads(line) for line in (ended.out / "samples.jsonl").read_text().splitlines()]
    assert all(sample["model_prompt"] == f"[{sample['prompt']}]" for sample in samples), samples[0]
    texts = [sample["completion"] for sample in samples]
    assert any(text[-1:] in VOWELS for text in texts if text), texts
    assert not any(letter in VOWELS for text in texts for letter in text[:-1]), texts
    assert [row["step"] for row in ended.rows if "eval_hard/score" in row] == [0, 2, 3]
    last = ended.rows[-1]
    assert last["eval_hard/score_low"] < last["eval_hard/score"] < last["eval_hard/score_high"]
    assert 0 <= last["eval_hard/pass_at_1"] <= last["eval_hard/pass_at_4"] <= 1
    assert "step 3  hard score " in ended.stdout and "pass@4 " in ended.stdout
    assert [one["name"] for one in ended.summary["evals"]] == ["", "hard"]

    scores = {row["step"]: row["eval_hard/pass_at_4"] for row in ended.rows if row["step"] in (2, 3)}
    best = max(scores, key=lambda step: (scores[step], -step))
    latest = json.loads((job.checkpoints / "latest.json").read_text())
    adapter = job.checkpoints / f"iter_{best:07}" / "lora_adapter"
    made_of = json.loads((adapter / "lorarl_metadata.json").read_text())
    assert latest["best"] == {
        "path": f"iter_{best:07}",
        "step": best,
        "metric": "eval_hard/pass_at_4",
        "value": scores[best],
        "measured_by": made_of["evaluations"]["hard"],
        "adapter_sha256": hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest(),
    }
    assert best in published_steps(job.checkpoints), "evaluated steps have checkpoints"
    assert ended.summary["best"]["uri"].endswith(f"iter_{best:07}/lora_adapter")
    assert f"Best      {ended.summary['best']['uri']} (step {best}, eval_hard/pass_at_4 " in ended.stdout
    adapter = local_folder(ended.summary["best"]["uri"])
    assert (adapter / "chat_template.jinja").read_text() == TEMPLATE, "the adapter comes with its template"
    card = (adapter / "README.md").read_text()
    assert f"| eval_hard/pass_at_4 | {ended.rows[0]['eval_hard/pass_at_4']:.4g}" in card
