"""Whatever a job has beside it, its adapter can be evaluated: each field of the contract, and each rule's good job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from lorarl_api.load import faults
from lorarl_api.v1alpha1 import LoRARLJob, LoRARLJobSpec
from lorarl_api.v1alpha1.common import Model
from lorarl_trainer.errors import InputError
from lorarl_trainer.trained_adapters.request import Request, resolve
from unit.contract.cases import CASES
from unit.contract.manifests import Changes, manifest
from unit.contract.test_rules import parts_of

OPTIONS = [
    {"data": "other.jsonl", "reward": "numeric", "rows": 3, "samples": 2, "temperature": 0.5, "passing": 0.5},
    {"data": "other.jsonl", "reward": "mine:score", "max_tokens": 1, "seed": 7},
]
"""Taken in turn."""


def leaves(model: type[Model], path: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the path of each field of a model and of those in it, without those in lists."""
    for name, field in model.model_fields.items():
        inner = f"{path}.{field.alias or name}"
        models = [part for part in get_args(field.annotation) or (field.annotation,) if _is_model(part)]
        if models and get_origin(field.annotation) is not list:
            yield from leaves(models[0], inner)
        else:
            yield inner, field


def _is_model(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, Model)


def values(field: FieldInfo) -> list[Any]:
    """Return values of a field as the contract describes it."""
    literals = [part for part in parts_of(field.annotation) if get_origin(part) is Literal]
    found = [*(field.examples or []), *(value for part in literals for value in get_args(part))]
    found += [True] if bool in parts_of(field.annotation) else []
    return (found or ["keys" if field.default is None else field.default])[-1:]


PARTS = ("spec.rollout", "spec.adapter", "spec.checkpoint")
FIELDS = {path: field for path, field in leaves(LoRARLJobSpec, "spec") if path.startswith(PARTS)}


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield valid manifests: of each rule's case, and with each field of the contract, by a name."""
    for case in CASES:
        yield case.name, manifest(case.good)
    for path, field in FIELDS.items():
        for value in values(field):
            changed = manifest({path: value})
            if not faults(changed):
                yield f"{path}={value}", changed


def test_an_adapter_of_any_job_can_be_evaluated_with_any_option() -> None:
    tried, refused = set[str](), []
    for name, document in jobs():
        job = LoRARLJob.model_validate(document)
        tried |= {path for path in FIELDS if _has(document, path)}
        try:
            resolve(Request("out/any", **OPTIONS[len(tried) % 2]), job)
        except (InputError, ValueError) as error:
            refused.append(f"{name}: {error}")
    assert refused == []
    assert set(FIELDS) - tried == set()


def _has(document: Any, path: str) -> bool:
    for key in path.split("."):
        if not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True


@pytest.mark.parametrize(
    ("changes", "options", "option"),
    [
        ({"spec.reward": {"length": {"freeTokens": 40, "maxTokens": 90}}}, {"max_tokens": 40}, "--max-tokens"),
        ({"spec.reward": {"length": {"freeTokens": 40, "maxTokens": 90}}}, {"data": "rows.txt"}, "--data"),
        ({}, {"reward": "nonsense"}, "--reward"),
    ],
)
def test_an_option_that_does_not_go_together_with_the_job_is_named(
    changes: Changes, options: dict[str, Any], option: str
) -> None:
    """And not the field of the manifest, where nothing is wrong."""
    job = LoRARLJob.model_validate(manifest(changes))
    with pytest.raises(InputError) as refused:
        resolve(Request("out/any", **{"data": "rows.jsonl", **options}), job)
    assert refused.value.field == option
    resolve(Request("out/any", data="rows.jsonl"), job)


def test_an_environment_is_played_in_unless_a_reward_is_named() -> None:
    played: list[Changes] = [
        {"spec.reward": None, "spec.environment": {"function": "my_env:Episode"}},
        {"spec.reward": None, "spec.environment": {"textarena": "GuessTheNumber-v0"}},
        {"spec.environment": {"tools": ["my_tools:search", "my_tools:add"]}},
    ]
    for changes in played:
        job = LoRARLJob.model_validate(manifest(changes))
        assert resolve(Request("out/any", data="rows.jsonl"), job).spec.environment == job.spec.environment
        assert resolve(Request("out/any", data="rows.jsonl", reward="exact"), job).spec.environment is None
