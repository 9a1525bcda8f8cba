"""No accepted manifest stops the operator: random manifests, and the examples with the real KubeRay."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lorarl_api.load import load_job
from support.cluster.client import ApiError, Object
from support.cluster.lorarljobs import lorarljob, phase
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until

ROOT = Path(__file__).parents[2]


def is_for_one_machine(path: Path) -> bool:
    return load_job(path).spec.checkpoint.uri.startswith("file:")


SPEC = yaml.safe_load((ROOT / "crds/lorarl.io_lorarljobs.yaml").read_text())["spec"]["versions"][0]["schema"][
    "openAPIV3Schema"
]["properties"]["spec"]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.yaml")) if not is_for_one_machine(path)]
Way = tuple[str, ...]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)
POD_PARTS = st.fixed_dictionaries(
    {},
    optional={
        "spec": st.dictionaries(
            st.sampled_from(["containers", "volumes", "restartPolicy", "nodeSelector", "hostNetwork", "tolerations"]),
            JSON,
        ),
        "metadata": st.dictionaries(st.sampled_from(["labels", "annotations"]), JSON),
    },
)


def values(schema: Object) -> st.SearchStrategy[Any]:
    """Values that match a schema, or nearly. The API server decides which of them it accepts."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        return st.integers(schema.get("minimum", 0), min(schema.get("maximum", 2**31), 2**31))
    if kind == "number":
        return st.floats(schema.get("minimum", 0), schema.get("maximum", 10), allow_nan=False)
    if kind == "array":
        return st.lists(values(schema["items"]), max_size=3)
    if kind == "string":
        return st.from_regex(schema["pattern"], fullmatch=True) if "pattern" in schema else st.text(max_size=20)
    if properties := schema.get("properties"):
        needed = set(schema.get("required", ()))
        parts = {name: values(part) for name, part in properties.items()}
        return st.fixed_dictionaries(
            {name: part for name, part in parts.items() if name in needed},
            optional={name: part for name, part in parts.items() if name not in needed},
        )
    if isinstance(schema.get("additionalProperties"), dict):
        return st.dictionaries(st.text(max_size=8), values(schema["additionalProperties"]), max_size=3)
    return JSON


def ways(schema: Object, way: Way = ()) -> Iterator[tuple[Way, Object]]:
    """All fields of a spec, with their paths."""
    for name, part in schema.get("properties", {}).items():
        if (*way, name) == ("cluster", "nodes"):
            continue  # A thousand pods would not test more.
        yield (*way, name), part
        yield from ways(part, (*way, name))


FIELDS = list(ways(SPEC))
CHANGES = st.lists(
    st.sampled_from(FIELDS).flatmap(lambda field: values(field[1]).map(lambda value: (field[0], value)))
    | st.sampled_from(["head", "worker"]).flatmap(
        lambda role: POD_PARTS.map(lambda parts: (("cluster", "podTemplateOverrides", role), parts))
    ),
    min_size=1,
    max_size=3,
)


def changed(spec: Object, changes: list[tuple[Way, Any]]) -> Object:
    for way, value in changes:
        here = spec
        for name in way[:-1]:
            here[name] = here[name] if isinstance(here.get(name), dict) else {}
            here = here[name]
        here[way[-1]] = copy.deepcopy(value)
    return spec


def test_no_manifest_stops_the_operator(kuberay_platform: Platform, replica: Operator) -> None:
    p = kuberay_platform
    namespace = p.namespace("random")
    taken: list[str] = []
    errors = replica.metric("lorarl_operator_errors_total")

    @settings(max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        changes=CHANGES,
        labels=st.dictionaries(st.sampled_from(["ray.io/x", "volcano.sh/queue-name"]), st.text("ab-", max_size=4)),
    )
    def apply(changes: list[tuple[Way, Any]], labels: dict[str, str]) -> None:
        manifest = lorarljob(namespace, f"random-{len(taken)}", labels=labels)
        changed(manifest["spec"], changes)
        try:
            p.api.create(manifest)
        except ApiError as error:
            assert error.status in (400, 422), error
        else:
            taken.append(manifest["metadata"]["name"])

    apply()
    assert len(taken) > 10, f"only {len(taken)} manifests were accepted"
    p.api.create(lorarljob(namespace, "plain"))
    p.api.wait("LoRARLJob", "plain", namespace, lambda job: phase(job) == "Running", seconds=60)
    until(
        30,
        "each job has a phase",
        lambda: all(phase(job) for job in p.api.list("LoRARLJob", namespace)),
        replica.process,
    )
    assert replica.metric("lorarl_operator_errors_total") == errors
    p.api.delete("Namespace", namespace)


@pytest.fixture(scope="module")
def examples(kuberay_platform: Platform, replica: Operator) -> Iterator[dict[Path, str]]:
    """The namespace of each example. Two examples may have the same name."""
    namespaces = {path: kuberay_platform.namespace("example") for path in EXAMPLES}
    for path, namespace in namespaces.items():
        kuberay_platform.cluster.must("apply", "-n", namespace, "-f", str(path))
    yield namespaces
    for namespace in namespaces.values():
        kuberay_platform.cluster.must("delete", "lrj", "--all", "-n", namespace)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_kuberay_accepts_the_rayjob_of_each_example(
    kuberay_platform: Platform, examples: dict[Path, str], path: Path
) -> None:
    name = yaml.safe_load(path.read_text())["metadata"]["name"]
    rayjob = kuberay_platform.api.wait(
        "RayJob", f"{name}-1", examples[path], lambda job: job.get("status", {}).get("jobDeploymentStatus"), seconds=30
    )
    assert rayjob["status"]["jobDeploymentStatus"] in ("Initializing", "Running"), rayjob["status"].get("message")
