"""Every field of a job's spec is honoured by something, and either makes a training another one or may change.

A new field fails here until operator or trainer reads it, and until `checkpoint/identity.py` or `MAY_CHANGE` has it.
"""

from __future__ import annotations

import ast
import types
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJobSpec, Model
from lorarl_api.v1alpha1.algorithm_types import ABOUT
from lorarl_trainer.checkpoint.identity import training_identity

ROOT = Path(__file__).parents[3]
CONTRACT = ROOT / "crds/lorarl_api/v1alpha1"
READERS = (ROOT / "operator/lorarl_operator", ROOT / "trainer_image/lorarl_trainer")

MAY_CHANGE = frozenset(
    {
        # Where and for how long it runs, what is shown of it, and what it is compared with.
        *("cluster", "tracking", "checkpoint", "templateRef", "data.eval", "data.evals"),
        *("suspend", "backoffLimit", "maxPreemptionsWithoutProgress", "activeDeadlineSeconds", "startDeadlineSeconds"),
        *("progressDeadlineSeconds", "ttlSecondsAfterFinished", "retryPolicy", "publish"),
        # What only gives access, or says how patiently a server is asked.
        *("model.credentialsSecret", "data.credentialsSecret"),
        *(f"algorithm.distillation.server.{one}" for one in ("url", "credentialsSecret", "concurrency", "retries")),
        *(f"algorithm.distillation.server.{one}" for one in ("timeoutSeconds", "maxFailedShare")),
        *(
            f"{reward}.{one}"
            for reward in ("reward", "rewards")
            for one in (
                *("timeoutSeconds", "maxFailedShare", "source.uri", "source.configMap", "source.credentialsSecret"),
                *("server.url", "server.credentialsSecret", "server.concurrency", "server.retries"),
            )
        ),
        *(f"environment.{one}" for one in ("timeoutSeconds", "maxFailedShare", "concurrency", "maxSequences")),
        *(f"environment.source.{one}" for one in ("uri", "configMap", "credentialsSecret")),
        # How far and how fast it learns: a user may correct these in the middle.
        *(f"trainer.{one}" for one in ("steps", "learningRate", "learningRateSchedule", "minLearningRateShare")),
        *(f"trainer.{one}" for one in ("warmupSteps", "weightDecay", "beta1", "beta2", "epsilon", "maxGradNorm")),
        *("rollout.promptsPerStep", "algorithm.ppo.criticLearningRate"),
        # How samples are drawn, and which of them.
        *(f"rollout.{one}" for one in ("temperature", "topP", "topK", "minP", "stop", "logprobTolerance")),
        *("rollout.partial.extraPrompts", "rollout.partial.tokensPerRound"),
        # How it is computed.
        *(f"trainer.{one}" for one in ("backend", "precision", "recompute", "tokensPerMicroBatch", "routerReplay")),
        *(f"trainer.{one}" for one in ("tensorParallelSize", "contextParallelSize", "expertParallelSize")),
        *(f"rollout.{one}" for one in ("adapterSync", "verifySync", "offload", "gpuMemoryFraction")),
        *("rollout.tensorParallelSize", "rollout.servers", "rollout.serverFolder", "rollout.serverTimeoutSeconds"),
        *("rollout.credentialsSecret", "rollout.maxStaleness", "rollout.separateEngines"),
    }
)
"""Fields, and groups of them, with which a checkpoint may be resumed although they differ."""


def filled(model: type[Model], path: str = "") -> Model:
    """Make a part of a spec in which the value of every field is its own path."""
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        inner, is_list = of_annotation(field.annotation)
        own = f"{path}{field.alias}"
        value = filled(inner, f"{own}.") if inner else f"<{own}>"
        values[name] = [value] if is_list and inner else value
    return model.model_construct(**values)


def of_annotation(annotation: Any) -> tuple[type[Model] | None, bool]:
    """Return the model of a field, if it is a group, and whether it is a list."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union, typing.Annotated):
        return of_annotation(arguments[0])
    if origin is list:
        return of_annotation(arguments[0])[0], True
    return (annotation if isinstance(annotation, type) and issubclass(annotation, Model) else None), False


def leaves(part: Any) -> Iterator[str]:
    """Yield the path of every field that is no group."""
    if isinstance(part, Model):
        for name in type(part).model_fields:
            yield from leaves(getattr(part, name))
    elif isinstance(part, list):
        yield from leaves(part[0])
    else:
        yield part.strip("<>")


def job() -> LoRARLJobSpec:
    return typing.cast("LoRARLJobSpec", filled(LoRARLJobSpec))


def of_the_identity() -> set[str]:
    """Return the paths of the fields whose values are in a training's identity, with one algorithm or another."""
    found = set()
    for kind in ABOUT:
        algorithm = job().algorithm.model_copy(update={"type": kind})
        spec = job().model_copy(update={"algorithm": algorithm})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pydantic's, since no value has its field's type.
            identity = str(training_identity(spec, "fingerprint"))
        found |= {path for path in leaves(job()) if f"<{path}>" in identity}
    return found | {"algorithm.type"}


def allowed(path: str) -> bool:
    return any(path == one or path.startswith(f"{one}.") for one in MAY_CHANGE)


def test_every_field_makes_another_training_or_may_change() -> None:
    identity, fields = of_the_identity(), set(leaves(job()))
    assert len(fields) > 200 and "trainer.seed" in identity
    assert sorted(path for path in fields - identity if not allowed(path)) == []
    assert sorted(path for path in identity if allowed(path)) == []


def test_what_may_change_is_there() -> None:
    fields = set(leaves(job()))
    assert [one for one in MAY_CHANGE if not any(path == one or path.startswith(f"{one}.") for path in fields)] == []


def names_in(tree: ast.AST) -> set[str]:
    """Return the attributes and keys that code reads."""
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return attributes | texts


def read_outside() -> set[str]:
    """Return the names that operator and trainer read, also by way of the contract's properties and functions."""
    read = {
        name for folder in READERS for path in folder.rglob("*.py") for name in names_in(ast.parse(path.read_text()))
    }
    # What the operator's pods request is computed beside the contract, for `lorarl validate` too.
    read |= names_in(ast.parse((CONTRACT.parent / "pod_resources.py").read_text()))
    functions = [
        node
        for path in CONTRACT.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    for _ in range(3):  # A property may use another one.
        read |= {name for one in functions if one.name in read for name in names_in(one)}
    return read


def fields_of(model: type[Model]) -> Iterator[tuple[str, str, str]]:
    """Yield the model, the name and the alias of every field of a model and its groups."""
    for name, field in model.model_fields.items():
        yield model.__name__, name, str(field.alias)
        if inner := of_annotation(field.annotation)[0]:
            yield from fields_of(inner)


def test_every_field_is_read_outside_the_contract() -> None:
    read = read_outside()
    unread = {f"{model}.{name}" for model, name, alias in fields_of(LoRARLJobSpec) if not {name, alias} & read}
    assert unread == set()


@pytest.mark.parametrize("source", ["x.nobody_reads_me", "x['nobodyReadsMe']"])
def test_a_name_is_found_where_it_is_read(source: str) -> None:
    assert {"nobody_reads_me", "nobodyReadsMe"} & names_in(ast.parse(source))
