"""The examples are what they claim to be."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_api.render import render

ROOT = Path(__file__).resolve().parents[3]


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def test_addition_is_the_same_training_in_a_cluster_and_locally() -> None:
    here, there = (load_job(ROOT / "examples" / f"addition-{kind}.yaml") for kind in ("cpu", "cluster-cpu"))
    for part in ("adapter", "algorithm", "reward", "rollout", "trainer"):
        assert getattr(there.spec, part) == getattr(here.spec, part), part
    places = {"uri": True}
    for source in ("train", "eval"):
        assert getattr(there.spec.data, source).model_dump(exclude=places) == getattr(
            here.spec.data, source
        ).model_dump(exclude=places)
    assert there.spec.data.chat_template == here.spec.data.chat_template
    assert there.spec.world_size == here.spec.world_size == 1


def test_addition_in_a_cluster_uses_this_versions_image_on_the_node() -> None:
    cluster = load_job(ROOT / "examples" / "addition-cluster-cpu.yaml").spec.cluster
    assert (cluster.image, cluster.image_pull_policy) == (f"lorarl/trainer:{version()}-cpu", "IfNotPresent")


def test_the_smoke_test_needs_nothing_but_one_configmap_and_a_store() -> None:
    """docs/install.md makes the ConfigMap of the folder; Kubernetes allows it a MiB, in base64."""
    files = [path for path in (ROOT / "examples/smoke").iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) * 4 / 3 < 0.9 * 2**20
    job = load_job(ROOT / "examples/smoke-cluster-cpu.yaml")
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {path.name for path in files}
    assert (job.spec.model.uri, job.spec.data.train.uri) == ("file:/etc/smoke", "file:/etc/smoke/train.jsonl")
    overrides = job.spec.cluster.pod_template_overrides
    for role, override in (("head", overrides.head), ("worker", overrides.worker)):
        assert override is not None
        pod = override.model_dump()["spec"]
        assert pod["volumes"] == [{"name": "smoke", "configMap": {"name": "smoke"}}]
        mounts = [{"name": "smoke", "mountPath": "/etc/smoke"}]
        assert pod["containers"] == [{"name": f"ray-{role}", "volumeMounts": mounts}]
    assert job.spec.cluster.image == f"REGISTRY/lorarl/trainer:{version()}-cpu"


@pytest.mark.parametrize("path", sorted((ROOT / "examples/site").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_job_of_a_site_is_valid_with_its_template(path: Path) -> None:
    assert load_job(path).spec.template_ref is not None
    assert load_job(render(path)).spec.template_ref is None
