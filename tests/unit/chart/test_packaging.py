"""The chart as it is published: its metadata, and a way through a registry for OCI artifacts."""

from __future__ import annotations

from pathlib import Path

import yaml

from support.helm import CHART, helm
from support.oci_registry import oci_registry

ROOT = CHART.parents[1]


def test_the_metadata_names_all_kinds() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    definitions = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("lorarl.io_*.yaml")]
    named = {one["name"]: one["kind"] for one in yaml.safe_load(about["annotations"]["artifacthub.io/crds"])}
    assert named == {one["metadata"]["name"]: one["spec"]["names"]["kind"] for one in definitions}


def test_the_chart_of_a_registry_is_the_one_that_was_pushed(tmp_path: Path) -> None:
    packed = helm("package", str(CHART), "--destination", str(tmp_path))
    assert packed.returncode == 0, packed.stderr
    (archive,) = tmp_path.glob("lorarl-*.tgz")
    with oci_registry() as registry:
        pushed = helm("push", str(archive), f"oci://{registry}/charts", "--plain-http")
        assert pushed.returncode == 0, pushed.stderr
        version = ("--version", archive.stem.removeprefix("lorarl-"))
        rendered = helm("template", "lorarl", f"oci://{registry}/charts/lorarl", "--plain-http", *version)
    assert rendered.returncode == 0, rendered.stderr
    assert "kind: Deployment" in rendered.stdout
    assert rendered.stdout == helm("template", "lorarl", str(CHART)).stdout
