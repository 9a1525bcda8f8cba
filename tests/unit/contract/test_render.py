"""`lorarl render`: the manifest that results from a job and its template."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from lorarl_api.load import load_job
from lorarl_trainer.cli import main
from unit.contract.manifests import manifest

POOL = {
    "apiVersion": "lorarl.io/v1alpha1",
    "kind": "ClusterLoRARLJobTemplate",
    "metadata": {"name": "pool"},
    "spec": {
        "labels": {"kueue.x-k8s.io/queue-name": "research"},
        "cluster": {"image": "platform/trainer:1", "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
        "locked": ["cluster.image"],
    },
}
REF = {"kind": "ClusterLoRARLJobTemplate", "name": "pool"}


def files(folder: Path, *documents: dict[str, object]) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def rendered(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["render", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_result_is_the_job_that_the_operator_sees(tmp_path: Path) -> None:
    path = files(tmp_path, POOL, manifest({"spec.templateRef": REF}))
    text = rendered(str(path), "--set", "spec.trainer.steps=7")
    job = load_job(text)
    assert job.metadata.labels == {"kueue.x-k8s.io/queue-name": "research"}
    assert (job.spec.cluster.image, job.spec.trainer.steps, job.spec.template_ref) == ("platform/trainer:1", 7, None)
    assert [each.key for each in job.spec.cluster.tolerations] == ["nvidia.com/gpu"]
    path.write_text(text)
    assert yaml.safe_load(rendered(str(path))) == yaml.safe_load(text), "a job without a template stays as it is"


def test_a_template_in_a_file_is_applied_also_to_a_job_that_names_none(tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    template.write_text(yaml.safe_dump(POOL))
    text = rendered(str(files(tmp_path, manifest())), "--template", str(template))
    assert load_job(text).spec.cluster.image == "platform/trainer:1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"spec.templateRef": REF, "spec.cluster.image": "mine:1"},
            'spec.cluster.image: got "mine:1", must keep',
        ),
        (
            {"spec.templateRef": {"name": "pool"}},
            "spec.templateRef: got 0 such templates, expected LoRARLJobTemplate pool",
        ),
        ({"spec.templateRef": REF, "spec.trainer.steps": 0}, "spec.trainer.steps: got 0"),
    ],
)
def test_what_cannot_be_rendered_is_said_with_the_fix(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    done = CliRunner().invoke(main, ["render", str(files(tmp_path, POOL, manifest(changes)))])
    assert done.exit_code == 1
    assert message in done.output
