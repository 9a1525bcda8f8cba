"""What a sweep is: its rules, its trials and their names, which is the best, and which to stop."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lorarl_api.crdgen import sweep_crd
from lorarl_api.faults import ManifestError
from lorarl_api.sweeps.manifest import checked_sweep, goal_of, sweep_faults
from lorarl_api.sweeps.objective import Goal, best_of, usual_goal
from lorarl_api.sweeps.stopping import MedianRule, extended, stopped_by_median, value_at
from lorarl_api.sweeps.trials import grid, listed, spec_of
from lorarl_api.v1alpha1 import SweepObjective
from lorarl_api.validate import validate_files
from unit.contract.manifests import Case, Changes
from unit.contract.sweep_cases import CASES, VALUES, sweep
from unit.contract.test_generate import objects


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_rule_is_refused_with_the_field_and_the_fix(case: Case) -> None:
    (fault,) = sweep_faults(sweep(case.bad))[:1]
    assert case.field in str(fault) and case.hint in str(fault)
    checked_sweep(sweep(case.good))


def test_each_field_has_a_description_and_a_bound() -> None:
    schema = sweep_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    template = schema["spec"]["properties"]["template"]["properties"].pop("spec")
    for path, field in [*objects(schema["spec"], "spec"), *objects(schema["status"], "status")]:
        assert field.get("description") or path.endswith("[]"), path
        kind = field.get("type", "any")
        assert kind != "string" or {"enum", "maxLength", "format"} & set(field) or path == "status.conditions[].status"
        assert kind != "array" or "maxItems" in field, path
    assert template["properties"]["adapter"]["properties"]["rank"] == {"type": "integer", "minimum": 1, "maximum": 512}
    assert not [path for path, field in objects(template) if "[]" not in path and {"default", "required"} & set(field)]


def test_names_are_those_of_lorarl_sweep() -> None:
    axes = {"spec.trainer.learningRate": [1e-5, 0.5, "3e-5"], "spec.adapter.targetModules": [["q_proj", "v_proj"]]}
    assert [trial.label for trial in grid("sums", axes)] == [
        f"learningRate={rate},targetModules=[q_proj, v_proj]" for rate in ("1e-05", "0.5", "3e-5")
    ]
    assert [trial.name for trial in grid("sums", {"spec.trainer.seed": [True, 7]})] == ["sums-seed-true", "sums-seed-7"]
    named, usual = listed("sums", [("large", {"spec.adapter.rank": 64}), (None, {"spec.adapter.rank": 8})])
    assert (named.name, named.label, usual.name) == ("sums-large", "large", "sums-rank-8")
    assert len(grid("a" * 42, {"spec.trainer.seed": [123]})[0].name) == 42


def test_a_trial_sets_its_values_and_leaves_the_template_as_it_is() -> None:
    shared = {"adapter": {"rank": 8}, "trainer": None}
    (trial,) = grid("a", {"spec.adapter.rank": [16], "spec.trainer.seed": [1]})
    assert spec_of(shared, trial) == {"adapter": {"rank": 16}, "trainer": {"seed": 1}}
    assert shared == {"adapter": {"rank": 8}, "trainer": None}
    with pytest.raises(ManifestError, match=r"spec.adapter.rank.a: got a path below spec.adapter.rank"):
        spec_of(shared, grid("a", {"spec.adapter.rank.a": [16]})[0])


@pytest.mark.parametrize(("changes", "message"), VALUES)
def test_values_that_make_no_trials_are_refused(changes: Changes, message: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(message)):
        checked_sweep(sweep(changes))


def test_faults_of_a_sweep_and_of_its_trials_come_at_once() -> None:
    template = {"spec.template.spec.checkpoint.keepBest": None, "spec.template.spec.trainer": {"steps": 0}}
    found = sweep_faults(sweep({"spec.objective": {"metric": "best"}, **template}))
    assert [fault.path for fault in found] == ["spec.objective", "spec.template.spec.trainer.steps"]


def test_lorarl_validate_names_the_trials_that_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep({"spec.over": [{"path": "spec.adapter.rank", "values": [8, 0]}]})))
    assert validate_files([path]) == 1
    told = capsys.readouterr().out
    assert told.count("\n") == 1 and "trial rank=0, spec.adapter.rank: got 0, expected an integer from 1" in told
    path.write_text(yaml.safe_dump(sweep({"spec.paralelism": 2})))
    assert validate_files([path]) == 1 and "Did you mean parallelism?" in capsys.readouterr().out
    path.write_text(yaml.safe_dump(sweep()))
    seen: list[str] = []
    assert validate_files([path], lambda job: (seen.append(job.name), (None, None))[1]) == 0
    assert seen == ["smallest-rank-8", "smallest-rank-16"]


@pytest.mark.parametrize(
    ("metric", "spec", "goal"),
    [
        ("reward", {}, "Maximize"),
        ("kl", {}, "Minimize"),
        ("tokensPerSecond", {}, "Maximize"),
        ("best", {"algorithm": {"type": "grpo"}}, "Maximize"),
        ("best", {"algorithm": {"type": "sft"}}, "Minimize"),
        ("best", {"algorithm": {"type": "sft"}, "checkpoint": {"keepBest": {"eval": "a", "passAtK": 2}}}, "Maximize"),
        ("evalScore", {"algorithm": {"type": "sft"}, "data": {"eval": {}}}, "Minimize"),
        ("evalScore", {"algorithm": {"type": "sft"}, "data": {"evals": [{"name": "a", "reward": {}}]}}, "Maximize"),
        ("evalScore", {"algorithm": {"type": "sft"}, "data": {"evals": [{"name": "a"}]}}, "Minimize"),
    ],
)
def test_less_of_a_loss_is_better(metric: Any, spec: dict[str, Any], goal: str) -> None:
    if spec.get("data", {}).get("evals"):
        spec["data"]["evals"][0] |= {"reward": {"type": "exact"}} if "reward" in spec["data"]["evals"][0] else {}
    assert goal_of(SweepObjective(metric=metric), spec) == goal
    assert goal_of(SweepObjective(metric=metric, goal="Minimize"), spec) == "Minimize"


def test_the_best_is_the_first_of_equal_ones() -> None:
    assert best_of({"a": 1.0, "b": 2.0, "c": 2.0}, Goal.MAXIMIZE) == ["b", "c"]
    assert best_of({"a": 1.0, "b": 1.0, "c": 2.0}, usual_goal("eval_a/loss")) == ["a", "b"]
    assert best_of({"a": math.nan, "b": -1.0, "c": math.inf}, Goal.MAXIMIZE) == ["b"]
    assert best_of({"a": math.nan, "b": math.nan}, Goal.MAXIMIZE) == ["a", "b"]
    with pytest.raises(ValueError, match="no trial has a value"):
        best_of({}, Goal.MAXIMIZE)


RULE = MedianRule(start_after=5, min_trials=2)


def test_the_median_stops_a_trial_whose_best_is_worse() -> None:
    others = [[(5, 0.4), (9, 0.9)], [(5, 0.6), (6, 0.7)], [(2, 0.9)]]
    verdict = stopped_by_median([(1, 0.1), (5, 0.3)], others, Goal.MAXIMIZE, RULE)
    assert verdict is not None and (verdict.step, verdict.value, verdict.median, verdict.others) == (5, 0.3, 0.5, 2)
    assert str(verdict) == "its best until step 5 is 0.3, worse than the median 0.5 of 2 others at that step"
    assert stopped_by_median([(5, 0.5)], others, Goal.MAXIMIZE, RULE) is None, "it is as good as the median"
    assert stopped_by_median([(4, 0.6), (5, 0.1)], others, Goal.MAXIMIZE, RULE) is None, "it was better before"
    assert stopped_by_median([(4, 0.1)], others, Goal.MAXIMIZE, RULE) is None, "it has startAfter steps"
    assert stopped_by_median([(5, 0.3)], others[1:], Goal.MAXIMIZE, RULE) is None, "too few have reached the step"
    assert stopped_by_median([(0, 0.3)], others, Goal.MAXIMIZE, MedianRule(0, 1)) is None, "nothing was trained yet"
    assert stopped_by_median([(5, 0.7)], others, Goal.MINIMIZE, RULE)
    assert stopped_by_median([(7, 0.3)], others, Goal.MAXIMIZE, RULE) is None, "one alone has reached step 7"
    assert value_at(others[0], 8) == 0.4 and value_at(others[0], 10) is None and value_at([(3, 1.0)], 2) is None


CURVES = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.floats(-1, 1)), max_size=8, unique_by=lambda point: point[0]).map(sorted),
    min_size=1,
    max_size=7,
)


@given(CURVES, st.sampled_from(Goal), st.integers(0, 10), st.integers(1, 4))
def test_the_trial_with_the_best_value_is_never_stopped(
    curves: list[list[tuple[int, float]]], goal: Goal, start_after: int, min_trials: int
) -> None:
    rule = MedianRule(start_after, min_trials)
    bests = {
        n: goal.best(*(value for step, value in one if step)) for n, one in enumerate(curves) if one and one[-1][0]
    }
    for number, curve in enumerate(curves):
        others = [one for other, one in enumerate(curves) if other != number]
        verdict = stopped_by_median(curve, others, goal, rule)
        assert verdict == stopped_by_median(curve, others[::-1], goal, rule), "the order of the others does not matter"
        if verdict is not None:
            assert verdict.step >= start_after and verdict.others >= min_trials
            others_best = goal.best(*(value for one in others for _, value in one))
            assert goal.better(others_best, bests[number]), "some other one had a better value"


@given(st.lists(st.integers(1, 300), max_size=200), st.integers(2, 9))
def test_a_long_curve_is_thinned_and_a_repeated_step_replaces_the_old_one(steps: list[int], most: int) -> None:
    curve: list[tuple[int, float]] = []
    for step in steps:
        curve = extended(curve, step, step / 2, most)
        assert curve[-1] == (step, step / 2) and len(curve) <= most
        assert [at for at, _ in curve] == sorted({at for at, _ in curve})


@pytest.mark.parametrize("rule", ["halving", "median"])
def test_a_rule_that_can_stop_no_trial_is_a_fault_of_the_manifest_alone(rule: str) -> None:
    """A user may know better than to remove it from a sweep that is there, so the operator only warns."""
    changes: Changes = {"spec.objective": {"metric": "reward"}, "spec.stopping": {rule: {"startAfter": 10}}}
    steps = {"path": "spec.trainer.steps", "values": [5, 10]}
    idle = sweep({**changes, "spec.over": [steps]})
    (fault,) = sweep_faults(idle)
    field = f"spec.stopping.{rule}.startAfter"
    assert str(fault).startswith(f"{field}: got 10, with trials of 10 steps, expected fewer. Set a smaller startAfter")
    checked_sweep(idle)
    assert not sweep_faults(sweep({**changes, "spec.over": [{**steps, "values": [5, 11]}]}))
    usual = sweep({**changes, "spec.template.spec.trainer.steps": None})
    assert not sweep_faults(usual), "the usual number of steps is larger"


@pytest.mark.parametrize("part", ["checkpoint", "data", "algorithm"])
@pytest.mark.parametrize("value", [[1], "x", True])
@pytest.mark.parametrize("metric", ["best", "evalScore"])
def test_a_part_of_a_wrong_type_is_named_as_that_of_a_job(part: str, value: object, metric: str) -> None:
    found = sweep_faults(sweep({f"spec.template.spec.{part}": value, "spec.objective": {"metric": metric}}))
    assert f"spec.template.spec.{part}" in [fault.path for fault in found], found
