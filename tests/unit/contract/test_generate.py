"""The CRD and the reference match the models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lorarl_api.crdgen import crd
from lorarl_api.generate import main
from lorarl_api.schema import job_schema

ROOT = Path(__file__).parents[3]


def objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each schema within `schema`, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from objects(inner, f"{path}.{name}")
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from objects(inner, f"{path}[]")


def test_the_committed_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_drift_is_reported_with_the_command_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("Run `make generate`") == 6
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--check", "--root", str(tmp_path)]) == 0
    (tmp_path / "docs/reference.md").write_text("edited by hand")
    assert main(["--check", "--root", str(tmp_path)]) == 1


def test_each_field_has_a_description_and_each_string_and_list_a_bound() -> None:
    (version,) = crd()["spec"]["versions"]
    for path, schema in objects(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec"):
        assert schema.get("description") or path.endswith("[]"), path
        kind = schema.get("type", "string")  # Without a type it is a number or a string.
        assert kind != "string" or "enum" in schema or "maxLength" in schema, path
        assert kind != "array" or "maxItems" in schema, path
        assert kind != "object" or "properties" in schema or "maxProperties" in schema, path


def test_each_field_that_a_fault_can_name_has_an_example() -> None:
    from lorarl_api.faults import example_of

    missing = [
        path for path, schema in objects(job_schema()["properties"]["spec"], "spec") if example_of(schema) is None
    ]
    assert missing == []


def test_the_reference_has_all_fields() -> None:
    text = (ROOT / "docs/reference.md").read_text()
    for path, schema in objects(job_schema()["properties"]["spec"], "spec"):
        if "properties" in schema:
            assert f"## {path}\n" in text
            assert f"- [`{path}`](#{re.sub(r'[^a-z]', '', path.lower())}): " in text
            assert all(f"| `{name}` |" in text for name in schema["properties"])


def test_the_committed_crd_is_plain_yaml() -> None:
    assert yaml.safe_load((ROOT / "crds/lorarl.io_lorarljobs.yaml").read_text()) == crd()


def test_delete_all_spares_the_jobs() -> None:
    """`kubectl delete all --all` deletes what is in the category `all`: with deletionPolicy Delete also adapters."""
    assert "all" not in crd()["spec"]["names"]["categories"]
