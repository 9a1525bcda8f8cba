"""docs/publishing.md: its manifest is valid, and its names are those that the code makes."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from lorarl_api.load import load_job
from lorarl_operator.decide.publish_reasons import Publishing
from lorarl_operator.decide.versions import model_name
from lorarl_operator.manifests.llm_inference_service import ACCEPTS
from lorarl_operator.manifests.llm_service_fit import misfit

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/publishing.md").read_text()
MANIFEST, FRAGMENT, SERVICE = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)


def test_the_pages_manifest_is_valid() -> None:
    spec = load_job(MANIFEST).spec
    assert spec.publish is not None and spec.publish[0].minimum == 0.7
    assert "spec.publish[0].aibrix.credentialsSecret" not in spec.secrets, "the job's pods do not mount it"


def test_the_entry_for_kserve_is_valid_in_it_and_names_the_pages_service() -> None:
    document = yaml.safe_load(MANIFEST)
    document["spec"] |= yaml.safe_load(FRAGMENT)
    spec = load_job(yaml.safe_dump(document)).spec
    assert spec.publish is not None and spec.publish[0].kserve is not None
    service = yaml.safe_load(SERVICE)
    assert spec.publish[0].kserve.service == service["metadata"]["name"]
    assert misfit(spec, service["spec"], 2) == ""
    assert ACCEPTS in {f"{key}={value}" for key, value in service["metadata"]["labels"].items()}
    assert f"kubectl label llminferenceservices qwen {ACCEPTS}\n" in PAGE


def test_a_versions_name_is_made_as_the_page_says() -> None:
    assert f"`{model_name('sums', 30, 'a40d8a7a' + '0' * 56)}`" in PAGE


def test_every_reason_is_given_by_the_operator() -> None:
    files = (ROOT / "operator/lorarl_operator").rglob("*.py")
    source = "\n".join(path.read_text() for path in files if path.name != "publish_reasons.py")
    assert [one.name for one in Publishing if f"Publishing.{one.name}" not in source] == []
    assert all(one.cause.endswith(".") and one.then.endswith(".") for one in Publishing)
