"""Write the version of pyproject.toml into the files that repeat it; with --check, whether they have it.

Helm and the Dockerfile cannot read pyproject.toml, and commands in the documents should work as they are written.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[1]
FILES = (
    "Dockerfile",
    "README.md",
    "crds/lorarl_api/v1alpha1/cluster.py",
    "docs/*.md",
    "examples/**/*.yaml",
    "helm/lorarl/Chart.yaml",
    "scripts/generate_chart.py",
)
_VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
# Tags of our images, the chart's versions, the Dockerfile's argument, and the wheel.
_REPEATED = re.compile(
    rf"(?P<before>lorarl/(?:operator|trainer):|trainerImage\.tag=|^version: |^appVersion: |ARG VERSION=|lorarl-"
    rf"|git tag -s v){_VERSION}",
    re.MULTILINE,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the version into the files, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/version.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file has another version")
    parser.add_argument("--root", type=Path, default=_ROOT, help="root of the repository")
    options = parser.parse_args(arguments)
    version = tomllib.loads((options.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    stale = False
    for path in sorted(path for pattern in FILES for path in options.root.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        if (wanted := with_version(text, version)) == text:
            continue
        if options.check:
            stale = True
            print(
                f"{path} has another version than pyproject.toml. Run `make generate` and commit it.", file=sys.stderr
            )
        else:
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote {path}")
    return int(stale)


def with_version(text: str, version: str) -> str:
    """Return a text with its mentions of lorarl's version replaced."""
    return _REPEATED.sub(lambda found: found["before"] + version, text)


if __name__ == "__main__":
    sys.exit(main())
