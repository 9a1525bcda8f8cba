"""The bill of materials says what the lock says."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOCK = """\
aiohttp==3.14.5 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
    # via
    #   -c requirements/cpu.lock
    #   lorarl (pyproject.toml)
    #   kopf
kopf==1.45.2 \\
    --hash=sha256:{b}
    # via lorarl (pyproject.toml)
Torch_Build[extra]==2.11.0+cpu \\
    --hash=sha256:{a}
    # via kopf
""".format(a="a" * 64, b="b" * 64)


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "scripts/sbom.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sbom"] = module  # where dataclasses look for the annotations' names
    spec.loader.exec_module(module)
    return module


def made(sbom: ModuleType, lock: str = LOCK) -> dict[str, Any]:
    document: dict[str, Any] = sbom.document(sbom.parse(lock.splitlines()), "lorarl/operator", "lorarl", "0.1.0")
    return document


def needs(document: dict[str, Any]) -> dict[str, list[str]]:
    return {each["ref"]: each["dependsOn"] for each in document["dependencies"]}


def test_each_package_is_a_component_with_its_url_and_its_files(sbom: ModuleType) -> None:
    components = {each["name"]: each for each in made(sbom)["components"]}

    assert components.keys() == {"lorarl", "aiohttp", "kopf", "Torch_Build"}
    assert components["aiohttp"]["purl"] == "pkg:pypi/aiohttp@3.14.5"
    assert components["Torch_Build"]["purl"] == "pkg:pypi/torch-build@2.11.0%2Bcpu"
    hashes = components["aiohttp"]["externalReferences"][0]["hashes"]
    assert hashes == [{"alg": "SHA-256", "content": "a" * 64}, {"alg": "SHA-256", "content": "b" * 64}]


def test_who_needs_whom_is_taken_from_the_lock(sbom: ModuleType) -> None:
    assert needs(made(sbom)) == {
        "lorarl/operator": ["pkg:pypi/lorarl@0.1.0"],
        "pkg:pypi/lorarl@0.1.0": ["pkg:pypi/aiohttp@3.14.5", "pkg:pypi/kopf@1.45.2"],
        "pkg:pypi/kopf@1.45.2": ["pkg:pypi/aiohttp@3.14.5", "pkg:pypi/torch-build@2.11.0%2Bcpu"],
        "pkg:pypi/aiohttp@3.14.5": [],
        "pkg:pypi/torch-build@2.11.0%2Bcpu": [],
    }


def test_a_lock_gives_the_same_bytes_another_lock_another_serial_number(sbom: ModuleType) -> None:
    first, again, other = made(sbom), made(sbom), made(sbom, LOCK.replace("1.45.2", "1.45.3"))

    assert json.dumps(first) == json.dumps(again)
    assert first["serialNumber"] != other["serialNumber"]
    assert uuid.UUID(first["serialNumber"].removeprefix("urn:uuid:"))


def test_a_line_that_is_not_understood_is_named(sbom: ModuleType) -> None:
    with pytest.raises(sbom.LockError, match=r"line 2: got 'kopf>=1', expected NAME==VERSION"):
        sbom.parse(["aiohttp==3.14.5", "kopf>=1"])


@pytest.mark.parametrize("lock", ["operator", "trainer-cpu", "gpu"])
def test_the_locks_of_the_images_make_complete_documents(lock: str, tmp_path: Path) -> None:
    path, output = ROOT / f"requirements/{lock}.lock", tmp_path / "out/sbom.cdx.json"

    subprocess.run(
        [sys.executable, "scripts/sbom.py", path, "--image", "lorarl/x", "--output", output], cwd=ROOT, check=True
    )

    document = json.loads(output.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    references = [each["bom-ref"] for each in document["components"]]
    assert len(references) == len(set(references)) == 1 + path.read_text().count("==")
    # Nothing hangs in the air: who is named is there, and all but the image itself is needed by somebody.
    assert {ref for on in needs(document).values() for ref in on} == set(references)
    assert needs(document).keys() == {*references, "lorarl/x"}
