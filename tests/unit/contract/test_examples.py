"""The examples are what they claim to be."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_api.render import render

ROOT = Path(__file__).resolve().parents[3]


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
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cluster = load_job(ROOT / "examples" / "addition-cluster-cpu.yaml").spec.cluster
    assert (cluster.image, cluster.image_pull_policy) == (f"lorarl/trainer:{version}-cpu", "IfNotPresent")


@pytest.mark.parametrize("path", sorted((ROOT / "examples/site").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_job_of_a_site_is_valid_with_its_template(path: Path) -> None:
    assert load_job(path).spec.template_ref is not None
    assert load_job(render(path)).spec.template_ref is None
