"""The manifest of a sweep: its trials, the column of its objective, and all its faults."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from lorarl_api.faults import Fault, ManifestError, from_pydantic, from_rule
from lorarl_api.hinted import rules_of_wrong_fields
from lorarl_api.load import faults
from lorarl_api.rules import broken_rules
from lorarl_api.schema import job_schema
from lorarl_api.sweeps.objective import Goal, usual_goal
from lorarl_api.sweeps.trials import Trial, grid, listed, spec_of, twice
from lorarl_api.template_schema import sweep_schema
from lorarl_api.v1alpha1 import API_VERSION, KIND, RULES_LATER, LoRARLSweep, LoRARLSweepSpec, SweepObjective
from lorarl_api.v1alpha1.algorithm_types import FROM_ANSWERS
from lorarl_api.v1alpha1.runtime import TrainerSpec
from lorarl_api.v1alpha1.sweep import FIELD_PATH, MAX_TRIALS

_COLUMNS = {"reward": "reward_mean", "kl": "kl", "tokensPerSecond": "tokens_per_second"}


def checked_sweep(document: Any) -> LoRARLSweep:
    """The sweep of a parsed manifest. The specs of its trials' jobs are not checked.

    Raises:
        ManifestError: it has faults. The error has all of them.
    """
    sweep = _parsed(document)
    if found := [*_of_rules(sweep, document), *_of_values(sweep)]:
        raise ManifestError(found)
    return sweep


def _parsed(document: Any) -> LoRARLSweep:
    """The sweep of a parsed manifest, unless a field has a wrong type. Raises ManifestError."""
    try:
        return LoRARLSweep.model_validate(document, by_alias=True, by_name=False, context=RULES_LATER)
    except ValidationError as error:
        besides = rules_of_wrong_fields(document, error, LoRARLSweep, sweep_schema())
        raise ManifestError([*from_pydantic(error, sweep_schema()), *besides]) from error


def _of_rules(sweep: LoRARLSweep, document: Any) -> Iterator[Fault]:
    """The faults by rules. They cannot read a template with another value in place of a group; jobs refuse that."""
    groups = {name for name, field in job_schema()["properties"]["spec"]["properties"].items() if "properties" in field}
    readable = sweep.model_copy(deep=True)
    for name in groups & set(readable.spec.template.spec):
        if not isinstance(readable.spec.template.spec[name], dict):
            del readable.spec.template.spec[name]
    return (from_rule(document, path, rule) for path, rule in broken_rules(readable))


def _of_values(sweep: LoRARLSweep) -> Iterator[Fault]:
    """The faults of values, which the API server's rules cannot read, since they have any type."""
    if sweep.spec.template.spec.get("suspend"):
        hint = "Remove it; to begin later, set suspend of the sweep. It continues no trial that another has suspended."
        yield Fault("spec.template.spec.suspend", "true", "nothing, since the sweep says when its trials run", hint)
    field = "spec.over" if sweep.spec.over else "spec.trials"
    count = math.prod(len(axis.values) for axis in sweep.spec.over or ())
    if count > MAX_TRIALS:
        hint = "Remove values, or make several sweeps."
        yield Fault(field, f"{count} combinations", f"at most {MAX_TRIALS}", hint)
        return
    for number, trial in enumerate(sweep.spec.trials or ()):
        for path in trial.set:
            if not re.fullmatch(FIELD_PATH, path) or path == "spec.suspend":
                where = f"spec.trials[{number}].set"
                hint = "Write for example spec.adapter.rank: 64. To suspend trials, set suspend of the sweep."
                yield Fault(where, f"the key {path}", "the path of a field of a LoRARLJob but spec.suspend", hint)
    if names := twice(trials_of(sweep.metadata.name, sweep.spec)):
        hint = "Leave out values that are there twice, or that only differ in their signs."
        yield Fault(field, f"several trials named {names[0]}", "trials of different names", hint)


def trials_of(name: str, spec: LoRARLSweepSpec) -> list[Trial]:
    """The trials of a sweep of this name, in order."""
    if spec.over:
        return grid(name, {axis.path: axis.values for axis in spec.over})
    return listed(name, [(one.name, one.set) for one in spec.trials or ()])


def job_document(spec: Mapping[str, Any], trial: Trial) -> dict[str, Any]:
    """The manifest of a trial's job, from the spec that all trials share.

    Raises:
        ManifestError: a path leads through something that is no mapping.
    """
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": trial.name}, "spec": spec_of(spec, trial)}


def goal_of(objective: SweepObjective, spec: Mapping[str, Any]) -> Goal:
    """The goal of an objective, for jobs with this spec."""
    return Goal(objective.goal) if objective.goal else usual_goal(_column(objective.metric, spec))


def sweep_faults(document: Any) -> list[Fault]:
    """All faults of a parsed manifest of a sweep, with those of its trials' jobs if the trials can be made."""
    try:
        sweep = _parsed(document)
    except ManifestError as error:
        return list(error.faults)
    found = list(_of_values(sweep))
    trials = [] if found else trials_of(sweep.metadata.name, sweep.spec)
    idle = stops_none(sweep.spec, trials)
    return [*_of_rules(sweep, document), *found, *([idle] if idle else []), *_of_jobs(sweep.spec.template.spec, trials)]


def stops_none(spec: LoRARLSweepSpec, trials: Sequence[Trial]) -> Fault | None:
    """The fault of a stopping rule that can stop no trial, since each ends in the steps that it may always make."""
    if (stopping := spec.stopping) is None or not trials:
        return None
    if (rule := stopping.halving or stopping.median) is None:
        return None
    most = max(_steps(spec.template.spec, trial) for trial in trials)
    if rule.start_after < most:
        return None
    kind = "halving" if stopping.halving else "median"
    hint = "Set a smaller startAfter, or remove stopping."
    return Fault(f"spec.stopping.{kind}.startAfter", f"{rule.start_after}, with trials of {most} steps", "fewer", hint)


def _steps(spec: Mapping[str, Any], trial: Trial) -> float:
    """The steps of a trial; no end if they cannot be read, which is a fault of its job."""
    try:
        steps = (spec_of(spec, trial).get("trainer") or {}).get("steps", TrainerSpec.model_fields["steps"].default)
    except (ManifestError, AttributeError):
        return math.inf
    return steps if isinstance(steps, int) else math.inf


def _of_jobs(spec: Mapping[str, Any], trials: Sequence[Trial]) -> Iterator[Fault]:
    """The faults of the template, once each, then those of each trial."""
    if not trials:
        return
    found = [_of_job(spec, trial) for trial in trials]
    own = {path for trial in trials for path, _ in trial.values}
    common = [fault for fault in found[0] if all(fault in one for one in found) and not _sets(own, fault.path)]
    yield from (replace(fault, path=f"spec.template.{fault.path}") for fault in common)
    for trial, those in zip(trials, found, strict=True):
        yield from (replace(one, path=f"trial {trial.label}, {one.path}") for one in those if one not in common)


def _of_job(spec: Mapping[str, Any], trial: Trial) -> Sequence[Fault]:
    try:
        return faults(job_document(spec, trial), in_cluster=True)
    except ManifestError as error:
        return error.faults


def _sets(paths: Collection[str], field: str) -> bool:
    """Whether one of the paths is the field, part of it, or what it is part of."""
    return any(re.match(rf"{re.escape(a)}($|[.\[])", b) for path in paths for a, b in ((path, field), (field, path)))


def _column(metric: str, spec: Mapping[str, Any]) -> str:
    """The column of metrics.jsonl whose value a job's status has under this name."""
    if metric in _COLUMNS:
        return _COLUMNS[metric]
    data, chosen = _part(spec, "data"), _part(_part(spec, "checkpoint"), "keepBest")
    listed = data.get("evals")
    evals = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    if metric == "evalScore" and not data.get("eval"):
        one = next(iter(evals), {})
    else:
        one = next((one for one in evals if metric == "best" and one.get("name") == chosen.get("eval")), {})
    scored = one.get("reward") or (metric == "best" and chosen.get("passAtK"))
    answers = str(_part(spec, "algorithm").get("type")) in FROM_ANSWERS
    return "eval_loss" if answers and not scored else "eval_score"


def _part(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A mapping within a spec; empty if a trial has set something else there, which is a fault of its job."""
    found = spec.get(name)
    return found if isinstance(found, Mapping) else {}
