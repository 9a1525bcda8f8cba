"""A job as Python names it: a manifest, and what takes the place of its fields, as `--set` does. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lorarl.reward_code import MODULE, importable, module_of, written_name
from lorarl.rows import json_lines
from lorarl_api.load import assign, documents, load_job
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_api.yaml_writer import to_yaml
from lorarl_trainer.errors import InputError

type JobLike = str | Path | Mapping[str, Any] | LoRARLJob
"""The path of a manifest, its text in YAML, the manifest as a dict, or a checked job."""
type Rows = Iterable[Mapping[str, Any]]
type Function = Callable[..., Any]
type RewardLike = Function | list[Function] | tuple[Function, ...] | Mapping[str, Any] | str
"""One function, several that add up, or what the manifest's field `reward` takes; a text is a type or a function."""

INPUTS = "inputs"
"""Folder in a run's folder with what came from Python."""
_OF_FILE = ("uri", "reasoningGym", "episodes", "subset", "split")
"""Fields of a data source that say where its rows are."""


@dataclass(frozen=True)
class Asked:
    """A job that was asked for, without faults.

    Attributes:
        manifest: the file to run; one of `files`, if the job was not a file.
        overrides: assignments that change it, as of `--set`.
        out: the run's folder.
        files: what must be written first.
    """

    job: LoRARLJob
    manifest: Path
    overrides: tuple[str, ...]
    out: Path
    files: Mapping[Path, str]


def asked(
    job: JobLike,
    *,
    reward: RewardLike | None = None,
    data: Rows | None = None,
    held_out: Rows | None = None,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
) -> Asked:
    """Return what a call asks for. Nothing is written.

    Raises:
        ManifestError: the manifest has faults, those of the overrides included.
        InputError: rows or a reward cannot be used.
    """
    source = source_of(job)
    changes = assignments(overrides or {})
    document = deepcopy(documents(source)[0])
    assign(document, changes)
    out = Path(out) if out is not None else Path("out") / _name_in(document)
    spec = _mapping(document, "spec")
    files: dict[Path, str] = {}
    for field, rows, argument in (("train", data, "data"), ("eval", held_out, "held_out")):
        if rows is not None:
            path = out / INPUTS / f"{field}.jsonl"
            files[path] = json_lines(rows, argument)
            changes += _with_rows(spec, field, path)
    if reward is not None:
        changes += _with_reward(spec, reward, out / INPUTS, files)
    checked = load_job(source, changes)
    if isinstance(source, Path):
        return Asked(checked, source, tuple(changes), out, files)
    manifest = out / INPUTS / "job.yaml"
    return Asked(checked, manifest, tuple(changes), out, {**files, manifest: source})


def assignments(overrides: Mapping[str, Any]) -> list[str]:
    """Return overrides such as {"spec.trainer.steps": 5} as `--set` takes them.

    Raises:
        InputError: a value is none of YAML's.
    """
    return [f"{path}={_yaml(value, path)}" for path, value in overrides.items()]


def source_of(job: JobLike) -> Path | str:
    """Return the manifest's file, or its text in YAML.

    Raises:
        InputError: a value is none of YAML's.
    """
    if isinstance(job, LoRARLJob):
        job = job.model_dump(by_alias=True, mode="json", exclude_unset=True)
    if isinstance(job, Mapping):
        return _yaml(dict(job), "job", flow=False)
    return job if isinstance(job, str) and "\n" in job else Path(job)


def _name_in(document: Any) -> str:
    """Return a job's name. Where it has none, `load_job` says so."""
    name = _mapping(document, "metadata").get("name")
    return name if isinstance(name, str) and Path(name).name == name else "job"


def _mapping(document: Any, key: str) -> Mapping[str, Any]:
    """Return a field of a manifest that was not checked yet; nothing if it is no mapping."""
    found = document.get(key) if isinstance(document, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _with_rows(spec: Mapping[str, Any], field: str, path: Path) -> list[str]:
    """Return what makes a file the rows of `spec.data`. Columns that the manifest names stay."""
    data = _mapping(spec, "data")
    before = _mapping(data, field)
    rows = {"uri": file_uri(path), **{key: value for key, value in before.items() if key not in _OF_FILE}}
    instead = {"spec.data.mixture": None} if field == "train" and data.get("mixture") else {}
    return assignments({f"spec.data.{field}": rows, **instead})


def _with_reward(spec: Mapping[str, Any], reward: RewardLike, inputs: Path, files: dict[Path, str]) -> list[str]:
    """Return what makes this the job's reward. The module of its functions is added to `files`."""
    field, other = "reward", "rewards"
    value: Any
    if isinstance(reward, str):
        value = {"function" if ":" in reward else "type": reward}
    elif isinstance(reward, Mapping):
        value = dict(reward)
    elif isinstance(reward, list | tuple):
        if others := [one for one in reward if not callable(one)]:
            hint = "Name all of them in the manifest: overrides={'spec.rewards': [{'name': ..., 'type': ...}, ...]}."
            raise InputError("reward", f"{others[0]!r} in a list of functions", "functions alone", hint)
        field, other = other, field
        value = [{"name": getattr(one, "__name__", ""), **fields} for one, fields in _functions(reward, inputs, files)]
    else:
        ((_, value),) = _functions([reward], inputs, files)
    return assignments({f"spec.{field}": value, **({f"spec.{other}": None} if spec.get(other) else {})})


def _functions(
    functions: Sequence[Function], inputs: Path, files: dict[Path, str]
) -> list[tuple[Function, dict[str, Any]]]:
    """Return each function with its fields in a manifest. The module of those that only this process has is written."""
    source: dict[str, Any] = {}
    if own := [function for function in functions if importable(function) is None]:
        text = module_of(own, "reward")
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        path = inputs / f"reward-{digest}" / f"{MODULE}.py"  # an earlier run's code stays as it was
        files[path] = text
        source = {"source": {"uri": file_uri(path)}}
    named = {id(one): importable(one) for one in functions}
    return [
        (
            one,
            {"function": place}
            if (place := named[id(one)])
            else {"function": f"{MODULE}:{written_name(one)}", **source},
        )
        for one in functions
    ]


def file_uri(path: Path) -> str:
    """Return the URI of a file: relative to the working directory, if its path is."""
    return f"file://{path}" if path.is_absolute() else f"file:{path}"


def _yaml(value: Any, name: str, *, flow: bool = True) -> str:
    try:
        return to_yaml(value, flow=flow)
    except yaml.YAMLError as error:
        found = error.args[-1] if error.args else error
        hint = "Pass functions as reward=." if callable(found) else "Convert it, for example with str()."
        got = f"a value of type {type(found).__name__}"
        raise InputError(name, got, "texts, numbers, lists and dicts", hint) from None
