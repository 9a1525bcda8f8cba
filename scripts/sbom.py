"""Writes the bill of materials of an image, as CycloneDX 1.6 JSON, from the lock that its packages are installed from.

The lock has every package with its version, the SHA-256 of the files that it may come from, and the packages that need
it (`# via`). This only uses the standard library, so that it can run while an image is built.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PACKAGE = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*])?==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})")
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://lorarl.io/sbom")


class LockError(ValueError):
    """The lock has a line that is neither a pinned package, a hash nor a comment."""


@dataclass
class Package:
    """A package of a lock.

    Attributes:
        needed_by: names of the packages that need it; the project may be one of them.
        digests: SHA-256 of the files that it may be installed from, in hexadecimal.
    """

    name: str
    version: str
    needed_by: set[str] = field(default_factory=set)
    digests: list[str] = field(default_factory=list)

    @property
    def purl(self) -> str:
        """Its package URL, which identifies it in the document."""
        return f"pkg:pypi/{normalized(self.name)}@{self.version.replace('+', '%2B')}"


def normalized(name: str) -> str:
    """Return a package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(lock: Iterable[str]) -> list[Package]:
    """Return the packages of a lock as `uv pip compile --generate-hashes` writes it.

    Raises:
        LockError: a line is not of that form.
    """
    packages: list[Package] = []
    for number, line in enumerate(lock, start=1):
        text = line.strip()
        if found := _PACKAGE.match(text):
            packages.append(Package(found["name"], found["version"]))
        elif found := _HASH.match(text):
            packages[-1].digests.append(found["digest"])
        elif text.startswith("#"):
            # `# via name`, or `# via` and one name per line. The resolver's options can be there too.
            needed_by = text.removeprefix("#").strip().removeprefix("via").strip()
            if needed_by and not needed_by.startswith("-") and packages:
                packages[-1].needed_by.add(normalized(needed_by.split()[0].split("[")[0]))
        elif text:
            raise LockError(
                f"line {number}: got {text!r}, expected NAME==VERSION, --hash=sha256:... or a comment, "
                "as make lock writes them"
            )
    return packages


def document(packages: list[Package], image: str, project: str, version: str) -> dict[str, Any]:
    """Return the bill of materials.

    Args:
        packages: what is installed.
        image: the image's name without registry, such as lorarl/operator.
        project: name of the project whose packages these are.
        version: of the project and of the image.
    """
    own = f"pkg:pypi/{normalized(project)}@{version}"
    known = {normalized(package.name): package.purl for package in packages} | {normalized(project): own}
    needs: dict[str, list[str]] = {purl: [] for purl in known.values()}
    for package in packages:
        for name in package.needed_by & known.keys():
            needs[known[name]].append(package.purl)
    components = [
        _library(project, version, own, []),
        *(_library(each.name, each.version, each.purl, each.digests) for each in packages),
    ]
    subject = {"type": "container", "bom-ref": image, "name": image, "version": version}
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": components,
        "dependencies": [
            {"ref": image, "dependsOn": [own]},
            *({"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(needs.items())),
        ],
    }
    # The same lock gives the same document, byte for byte: it has no time, and its serial number follows from the rest.
    return {**body, "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, json.dumps(body))}"}


def _library(name: str, version: str, purl: str, digests: list[str]) -> dict[str, Any]:
    component: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if digests:
        hashes = [{"alg": "SHA-256", "content": digest} for digest in digests]
        component["externalReferences"] = [
            {"type": "distribution", "url": f"https://pypi.org/project/{normalized(name)}/{version}/", "hashes": hashes}
        ]
    return component


def main() -> None:
    """Write the document to a file or to standard output."""
    parser = argparse.ArgumentParser(
        description="Write the bill of materials (CycloneDX 1.6 JSON) of an image from its lock."
    )
    parser.add_argument("lock", type=Path, help="requirements/NAME.lock")
    parser.add_argument("--image", required=True, help="the image's name without registry, such as lorarl/operator")
    parser.add_argument(
        "--project", type=Path, default=Path("pyproject.toml"), help="file with name and version (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="default: standard output")
    arguments = parser.parse_args()
    project = tomllib.loads(arguments.project.read_text())["project"]
    try:
        packages = parse(arguments.lock.read_text().splitlines())
    except LockError as error:
        sys.exit(f"sbom: {arguments.lock}, {error}")
    text = json.dumps(document(packages, arguments.image, project["name"], project["version"]), indent=1) + "\n"
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
