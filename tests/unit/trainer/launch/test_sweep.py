"""The trials of a sweep: their names, what is said before they start, and which of them is the best."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from lorarl_api.load import load_job
from lorarl_api.sweeps.halving import HalvingRule
from lorarl_api.sweeps.objective import Goal, usual_goal
from lorarl_api.sweeps.stopping import MedianRule, Verdict
from lorarl_trainer.devices import nvidia_smi
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.early_stopping import HalvingStopping, MedianStopping, Present, Reached, forget, stopped
from lorarl_trainer.launch.sweep import (
    Trial,
    Value,
    best,
    curve,
    grid,
    jobs_of,
    reached,
    require_evaluated,
    shares,
    usual_objective,
)
from unit.contract.manifests import Changes, manifest

OUT = Path("out/sums-sweep")


def test_each_combination_is_a_trial_with_its_own_name_and_folder() -> None:
    trials = grid("sums", ["spec.trainer.learningRate=1e-5,3e-5", "spec.trainer.seed=0,1"], ["spec.a=2"], OUT)
    assert [trial.label for trial in trials] == [
        *("learningRate=1e-5,seed=0", "learningRate=1e-5,seed=1"),
        *("learningRate=3e-5,seed=0", "learningRate=3e-5,seed=1"),
    ]
    assert trials[1].folder == OUT / "learningRate=1e-5,seed=1" and trials[1].name == "sums-learningrate-1e-5-seed-1"
    name = "metadata.name=sums-learningrate-1e-5-seed-1"
    assert trials[1].overrides == ("spec.a=2", "spec.trainer.learningRate=1e-5", "spec.trainer.seed=1", name)
    more = grid("sums", ["spec.trainer.learningRate=9,1e-5", "spec.trainer.seed=1"], ["spec.a=2"], OUT)
    assert more[1] == trials[1], "values that come later change no trial"


def test_a_trial_of_many_or_long_values_has_a_name_that_a_job_may_have(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest({})))
    over = ["spec.trainer.learningRate=1e-5,3e-5", "spec.algorithm.groupSize=4,8", "spec.adapter.rank=8,32"]
    trials = grid("arithmetic", [*over, f"spec.model.uri=file:{'a' * 300},file:{'a' * 299}b"], [], OUT)
    jobs = jobs_of(path, trials, lambda _: (None, None))
    assert [job.name for job in jobs] == [trial.name for trial in trials]
    assert all(trial.name.startswith("arithmetic-learningrate-") for trial in trials)
    assert len({trial.name for trial in trials}) == len({trial.folder for trial in trials}) == 16
    assert max(len(trial.folder.name) for trial in trials) <= 100


def test_values_are_yaml_with_commas_of_their_own() -> None:
    over = "spec.adapter.targetModules=[q_proj, v_proj],all-linear,{a: [1, 2]},'x, y'"
    values = [trial.overrides[0].partition("=")[2] for trial in grid("a", [over], [], OUT)]
    assert values == ["[q_proj, v_proj]", "all-linear", "{a: [1, 2]}", "'x, y'"]
    files = [trial.folder.name for trial in grid("a", ["spec.model.uri=file:/a/b,file:/c"], [], OUT)]
    assert files == ["uri=file_a_b", "uri=file_c"]
    both = grid("a", ["spec.reward.type=exact", "spec.algorithm.type=grpo"], [], OUT)
    assert both[0].label == "spec.reward.type=exact,spec.algorithm.type=grpo"


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["spec.trainer.seed"], "got spec.trainer.seed, expected PATH=VALUE,VALUE"),
        (["spec.trainer.seed=0,,1"], "expected PATH=VALUE,VALUE"),
        (["spec.trainer.seed=0", "spec.trainer.seed=1"], "expected each path once"),
        (["spec.trainer.seed=0,1,0"], "expected trials of different names"),
    ],
)
def test_what_is_no_grid_is_refused(over: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        grid("a", over, [], OUT)


def test_all_trials_that_cannot_run_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest({})))
    trials = grid("demo", ["spec.adapter.rank=0,8,16", "spec.cluster.nodes=1,2"], ["spec.cluster.gpusPerNode=1"], OUT)
    refused = {"demo-rank-16-nodes-1": "no such model"}
    with pytest.raises(InputError) as error:
        jobs_of(path, trials, lambda job: (refused.get(job.name), None))
    lines = str(error.value).splitlines()
    assert lines[0] == "--over: got 5 of 6 trials that cannot run, expected only ones that can. Nothing was started."
    assert [line.partition(": ")[0] for line in lines[1:]] == [
        *("rank=0,nodes=1", "rank=0,nodes=2", "rank=8,nodes=2", "rank=16,nodes=1", "rank=16,nodes=2"),
    ]
    assert "spec.adapter.rank" in lines[1] and "spec.cluster.nodes" in lines[3] and "no such model" in lines[4]
    assert [job.name for job in jobs_of(path, trials[2:3], lambda _: (None, None))] == ["demo-rank-8-nodes-1"]


@pytest.mark.parametrize(
    "over",
    [
        ["metadata.name=a,b"],
        ["spec.trainer.learningRate=1e-5,0.00001"],
        ["spec.algorithm.groupSize=4,8", "spec.algorithm={type: rloo}"],
    ],
)
def test_values_that_make_no_other_job_are_no_trial(over: list[str], tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest({})))
    first, second = trials = grid("demo", over, [], OUT)
    with pytest.raises(InputError, match=re.escape(f"{second.label}: it would train the same as {first.label}: ")):
        jobs_of(path, trials, lambda _: (None, None))


def test_trials_that_run_at_a_time_have_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [load_job(yaml.safe_dump(manifest({})), [f"spec.cluster.gpusPerNode={count}"]) for count in (0, 1, 2)]
    assert shares(jobs[:1], 3) == [{}, {}, {}], "a CPU is shared"
    assert shares(jobs, 1) == [{}]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvidia_smi, "gpu_count", lambda: 4)
    engines = load_job(yaml.safe_dump(manifest({"spec.rollout.separateEngines": {}, "spec.cluster.gpusPerNode": 1})))
    assert shares([engines], 2) == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    assert shares(jobs, 2) == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,1")
    assert shares(jobs[:2], 3)[2] == {"CUDA_VISIBLE_DEVICES": "1"}
    with pytest.raises(InputError, match="got 2, on a machine with 3, expected 4 GPUs, of which each trial has 2"):
        shares(jobs, 2)


def test_the_best_trial_has_the_best_evaluation_or_the_best_last_steps() -> None:
    low, high = (
        [
            {"step": step, "eval_score": base + 0.1 * (step == 2), "eval_rows": 1}
            | dict.fromkeys(("loss", "reward_mean", "teacher/kl"), base)
            for step in range(4)
        ]
        for base in (0.3, 0.6)
    )
    assert usual_objective([[], low]) == "eval_score" and usual_objective([[{"step": 1}]]) == "reward_mean"
    for column in ("preference/accuracy", "teacher/kl", "loss"):  # of dpo, distillation and sft
        assert usual_objective([[{"step": 1, column: 0.5}]]) == column
    trials = grid("a", ["spec.trainer.seed=0,1"], [], OUT)
    for objective, expected, said in (
        ("eval_score", 1, "eval_score 0.7 at step 2"),
        ("reward_mean", 1, "reward_mean 0.6, last 10 steps"),
        ("loss", 0, "loss 0.3, last 10 steps"),
        ("teacher/kl", 0, "teacher/kl 0.3, last 10 steps"),
    ):
        values = {trial: reached(rows, objective) for trial, rows in zip(trials, (low, high), strict=True)}
        first = best({trial: value for trial, value in values.items() if value})
        assert first == [trials[expected]] and str(values[first[0]]) == said
    assert reached(low, "eval_loss") is None
    assert reached([{"step": 0, "eval_score": 1.0}], "eval_score") is None, "nothing was trained yet"


@pytest.mark.parametrize(
    ("objective", "goal", "value"),
    [
        ("eval_pass_at_4", Goal.MAXIMIZE, 0.7),
        ("eval_reward/keys", Goal.MAXIMIZE, 0.7),
        ("eval_hard/margin", Goal.MAXIMIZE, 0.7),
        ("eval_hard/loss", Goal.MINIMIZE, 0.4),
        ("critic/loss", Goal.MINIMIZE, 0.6),
        ("rollout_kl", Goal.MINIMIZE, 0.6),
        ("reward/loss", Goal.MAXIMIZE, 0.6),
    ],
)
def test_a_column_is_compared_as_what_it_is(objective: str, goal: Goal, value: float) -> None:
    """Of evaluations the best counts, and not the one before training; less of each loss and divergence is better."""
    rows = [{"step": step, objective: value} for step, value in enumerate((0.9, 0.7, 0.4))]
    assert usual_goal(objective) is goal
    if not objective.startswith("eval_"):
        assert reached(rows, objective) == Value(objective, pytest.approx(2 / 3), 0)
        return
    assert reached(rows, objective) == Value(objective, value, 1 if goal is Goal.MAXIMIZE else 2)
    assert reached(rows[:1], objective) is None, "nothing was trained yet"


def test_an_objective_is_of_an_evaluation_that_a_trial_has(tmp_path: Path) -> None:
    hard = {"name": "hard", "uri": "file:hard.jsonl", "reward": {"type": "exact"}}

    def refused(objective: str, changes: Changes) -> str:
        (path := tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest(changes)))
        with pytest.raises(InputError) as error:
            require_evaluated(objective, [load_job(path)])
        return str(error.value)

    assert refused("eval_score", {}) == (
        "--objective: got eval_score, of an evaluation that no trial has, expected a column that a trial has. "
        "Add data.eval to the job, or name a column of its steps."
    )
    assert "Name one of these: eval_hard/score." in refused("eval_score", {"spec.data.evals": [hard]})
    assert "Name one of these: eval_hard/score." in refused("eval_harder/score", {"spec.data.evals": [hard]})
    assert "eval_score, eval_hard/score" in refused(
        "eval_harder/pass_at_2", {"spec.data.evals": [hard], "spec.data.eval": {"uri": "file:e.jsonl"}}
    )
    for column in ("eval_score", "eval_reward/score", "eval_tools/calls"):
        require_evaluated(column, [load_job(tmp_path / "job.yaml")])
    job = load_job(tmp_path / "job.yaml")
    for column in ("eval_hard/score", "eval_hard/pass_at_4", "reward_mean", "kl"):
        require_evaluated(column, [job])


def reports(trial: Trial, *rows: dict[str, float | None]) -> None:
    trial.folder.mkdir(exist_ok=True)
    with (trial.folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_a_running_trial_is_judged_by_all_that_the_trials_have_reached(tmp_path: Path) -> None:
    trials = grid("a", ["spec.trainer.seed=0,1,2"], [], tmp_path)
    judge = MedianStopping(MedianRule(start_after=2, min_trials=2), Reached(trials, None))

    def verdicts(running: list[Trial]) -> Mapping[Trial, Verdict]:
        return judge.verdicts(Present(running))

    assert verdicts(trials) == {}, "nothing has begun"
    for seed, score in ((0, 0.5), (1, 0.7)):
        before, after = ({"step": step, "eval_score": value, "eval_rows": 1} for step, value in ((0, 0.9), (2, score)))
        reports(trials[seed], before, after)
    reports(trials[2], {"step": 0, "eval_score": 0.9, "eval_rows": 1}, {"step": 1, "reward_mean": 0.1})
    assert verdicts(trials[2:]) == {}
    reports(trials[2], {"step": 2, "eval_score": 0.1, "eval_rows": 1})
    assert verdicts(trials[:2]) == {}, "0.5 is above the median of 0.7 and 0.1"
    (verdict,) = verdicts(trials[2:]).values()
    assert (verdict.step, verdict.value, verdict.median) == (2, 0.1, 0.6)
    assert stopped(trials[2]) == verdict and stopped(trials[0]) is None
    assert verdicts([]) == {trials[2]: verdict}, "it stays so"
    forget(trials[2])
    assert stopped(trials[2]) is None


def test_halving_is_remembered_and_a_value_that_is_no_number_is_the_worst(tmp_path: Path) -> None:
    trials = grid("a", ["spec.trainer.seed=0,1,2"], [], tmp_path)
    steps = dict.fromkeys(trials, 30)

    def judge(*failed: Trial, objective: str | None = None) -> list[bool | None]:
        """What is said of each by a judge that has just begun; None: it continues."""
        one = HalvingStopping(HalvingRule(start_after=4, factor=3), Reached(trials, objective), steps)
        found = one.verdicts(Present(failed=failed))
        return [found[trial].final if trial in found else None for trial in trials]

    for trial, loss in zip(trials[:2], (None, 0.5), strict=True):
        reports(trial, *({"step": step, "eval_loss": loss if step else 0.1, "eval_rows": 1} for step in (0, 2, 4)))
    assert judge() == [True, False, None] and not (trials[2].folder / "rungs.json").exists()
    reports(trials[2], {"step": 4, "eval_loss": 0.3, "eval_rows": 1})
    assert judge() == [True, True, None]
    reports(trials[1], {"step": 4, "eval_loss": 0.2, "eval_rows": 1})
    assert judge() == [True, True, None], "what was recorded at a rung stays"
    assert judge(trials[2]) == [True, None, None], "the next best takes the place of one that failed"
    assert judge() == [True, None, None], "and keeps it"
    assert judge(objective="reward_mean") == [None, None, None], "rungs are those of an objective"
    for broken in ("", "[]", "{}", '{"objective": "eval_loss", "began": null, "rungs": [1]}'):
        (trials[1].folder / "rungs.json").write_text(broken)
        assert judge(trials[2]) == [True, None, None], "found again from the values"


def test_rungs_are_those_of_one_training(tmp_path: Path) -> None:
    trials = grid("a", ["spec.trainer.seed=0,1,2"], [], tmp_path)
    one = HalvingStopping(HalvingRule(2, 3), Reached(trials, "reward_mean"), dict.fromkeys(trials, 30))

    def trained(trial: Trial, hour: int, steps: int, reward: float) -> None:
        trial.folder.mkdir(exist_ok=True)
        rows = ({"step": step, "reward_mean": reward, "at": f"{hour}:{step}"} for step in range(1, steps + 1))
        (trial.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    for trial, reward in zip(trials, (0.1, 0.2, 0.3), strict=True):
        trained(trial, 1, 3, reward)
    assert [trial in one.verdicts(Present()) for trial in trials] == [True, True, False]
    trained(trials[2], 1, 1, 0.3)
    assert trials[2] not in one.verdicts(Present()), "one that repeats steps after its checkpoint keeps its promotion"
    trained(trials[2], 2, 1, 0.0)
    assert one.verdicts(Present())[trials[1]].reached == 2, "one that begins again has not reached the rung"
    trained(trials[2], 2, 2, 0.0)
    found = one.verdicts(Present())
    assert found[trials[2]].value == 0.0 and found[trials[2]].final and trials[1] not in found


def test_a_step_of_training_has_the_mean_of_the_last_ones() -> None:
    rows = [{"step": step, "reward_mean": float(step)} for step in range(1, 13)]
    points = curve(rows, "reward_mean")
    assert points[0] == (1, 1.0) and points[1] == (2, 1.5) and points[-1] == (12, 7.5)
    rows += [{"step": 13, "reward_mean": None}, {"step": 14, "reward_mean": 1.0}, {"step": 15}]
    points = curve(rows, "reward_mean")
    assert points[12] == (13, 7.5), "one step without a number has the mean before it, as in a cluster"
    assert points[13] == (14, pytest.approx(69 / 9)) and len(points) == 14
    last = curve([*rows[:12], *({"step": step, "reward_mean": None} for step in range(13, 30))], "reward_mean")
    assert last[20] == (21, 7.5) and math.isnan(last[21][1]), "after ten steps without a number it has none"
    assert reached(rows[:13], "reward_mean") == Value("reward_mean", 7.5, 0)
