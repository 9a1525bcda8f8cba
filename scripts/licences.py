"""Write docs/licences.md: the licence of each package that lorarl installs; with --check, whether it is up to date.

A licence is what the package's own metadata says. That of packages that are not installed here, such as those for GPUs,
is asked of the package index. --check only compares names and versions with the locks, so it needs neither.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import sbom

_ROOT = Path(__file__).parents[1]
LOCKS = {"wheel-cpu": "CPU", "gpu": "GPU", "operator": "operator"}
"""The locks of what users install, and how the table calls them."""
_PIP = "pip@26.3"  # reports the field License-Expression; older ones leave it out
# Named by their licence files, not by their metadata.
_BY_HAND = {
    "openai-harmony": "Apache-2.0",
    "transformer-engine": "Apache-2.0",
    "transformer-engine-cu13": "Apache-2.0",
    "transformer-engine-torch": "Apache-2.0",
}
_LONGEST = 60
_HEAD = """\
# Licences

lorarl itself is under Apache-2.0.
It contains uPlot (MIT), which draws the report's curves, with its licence beside it.
This table lists each package that `lorarl setup` installs or the operator's image has.
Its licence is what the package's metadata names.
`make generate` writes it from `requirements/*.lock`; do not edit it.

| package | version | licence | for |
|---|---|---|---|
"""
_ROW = re.compile(r"^\| (?P<name>\S+) \| (?P<version>\S+) \| (?P<licence>.+) \| (?P<uses>.+) \|$", re.MULTILINE)
Pin = tuple[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table, or compare it; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/licences.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the table is not of the locks")
    parser.add_argument("--root", type=Path, default=_ROOT, help="root of the repository")
    options = parser.parse_args(arguments)
    path = options.root / "docs/licences.md"
    wanted = uses(options.root / "requirements")
    known = rows(path.read_text(encoding="utf-8")) if path.exists() else {}
    if options.check:
        up_to_date = known.keys() == wanted.keys() and path.read_text(encoding="utf-8") == table(wanted, known)
        if not up_to_date:
            print(f"{path} is out of date. Run `make generate` and commit it.", file=sys.stderr)
        return int(not up_to_date)
    made = table(wanted, licences(list(wanted), known))
    if not path.exists() or path.read_text(encoding="utf-8") != made:
        path.write_text(made, encoding="utf-8")
        print(f"wrote {path}")
    return 0


def uses(requirements: Path) -> dict[Pin, list[str]]:
    """Return the uses of each package, by name and version."""
    found: dict[Pin, list[str]] = {}
    for lock, use in LOCKS.items():
        for package in sbom.parse((requirements / f"{lock}.lock").read_text(encoding="utf-8").splitlines()):
            found.setdefault((sbom.normalized(package.name), package.version), []).append(use)
    return found


def rows(page: str) -> dict[Pin, str]:
    """Return the licences of a table that was written before."""
    found = {(row["name"], row["version"]): row["licence"] for row in _ROW.finditer(page)}
    found.pop(("package", "version"), None)
    return found


def table(wanted: Mapping[Pin, list[str]], known: Mapping[Pin, str]) -> str:
    """Return the page."""
    lines = (
        f"| {name} | {version} | {known[name, version]} | {', '.join(on)} |\n"
        for (name, version), on in sorted(wanted.items())
    )
    return _HEAD + "".join(lines)


def licences(wanted: Sequence[Pin], known: Mapping[Pin, str]) -> dict[Pin, str]:
    """Return the licence of each package: from what is installed, the table as it was, or the package index."""
    found = {}
    for name, version in wanted:
        if name in _BY_HAND:
            found[name, version] = _BY_HAND[name]
            continue
        try:
            about = metadata(name)
        except PackageNotFoundError:
            continue
        if about["Version"] == version:
            fields = about.get("License-Expression"), about.get("License"), about.get_all("Classifier", [])
            found[name, version] = licence(*fields)
    left = [pin for pin in wanted if pin not in found]
    found |= {pin: known[pin] for pin in left if pin in known}
    return found | ask_index([pin for pin in left if pin not in found])


def licence(expression: str | None, text: str | None, classifiers: Sequence[str]) -> str:
    """Return the licence that a package's metadata names, from its three fields for that; the newest one counts."""
    if expression:
        return expression
    first, *_ = (text or "").strip().splitlines() or [""]  # some packages put the whole licence there
    if first and len(first) <= _LONGEST:
        return first.replace("|", "/")
    named = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License :: ")]
    return ", ".join(named) or "not named in its metadata"


def ask_index(pins: Sequence[Pin]) -> dict[Pin, str]:
    """Return the licences of packages that are not installed, from the metadata in the package index."""
    if not pins:
        return {}
    uv = subprocess.run([_ROOT / "scripts/uv.sh"], capture_output=True, text=True, check=True).stdout.strip()
    pip = [uv, "tool", "run", "-q", _PIP, "install", "--dry-run", "--quiet", "--report", "-", "--no-deps"]
    for_gpus = ["--python-version", "3.12", "--only-binary", ":all:", "--target"]
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{name}=={version}" for name, version in pins]
        report = subprocess.run([*pip, *for_gpus, folder, *names], capture_output=True, text=True, check=True).stdout
    asked = {}
    for package in json.loads(report)["install"]:
        about = package["metadata"]
        fields = about.get("license_expression"), about.get("license"), about.get("classifier", [])
        asked[sbom.normalized(about["name"]), about["version"]] = licence(*fields)
    return asked


if __name__ == "__main__":
    sys.exit(main())
