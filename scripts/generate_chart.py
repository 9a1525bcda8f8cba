"""Write the chart's generated files; with --check, say whether they are up to date.

The CRD is a copy of crds/lorarl.io_lorarljobs.yaml, since helm packs nothing from outside the chart's folder. README.md
has one row per value: its default, and the comment above it in values.yaml.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).parents[1]
_HEAD = """\
# lorarl {version}

{description}. Made by `make generate` from Chart.yaml and values.yaml; edit those.

```
helm install lorarl helm/lorarl --namespace lorarl-system --create-namespace \\
  --set image.repository=REGISTRY/lorarl/operator \\
  --set trainerImage.repository=REGISTRY/lorarl/trainer --set trainerImage.tag=0.1.0-cuda
helm test lorarl --namespace lorarl-system
```

KubeRay 1.6 must be there; the chart says how to install it where it is not. Modes, rights, metrics, alerts and upgrades:
[docs/operator.md](../../docs/operator.md).

## Values

| value | default | meaning |
|---|---|---|
"""
_KEY = re.compile(r"( *)([A-Za-z]\w*):(?: |$)")


class UndocumentedValueError(Exception):
    """A value of values.yaml has no comment above it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the chart's CRD and README.md, or compare them; return the exit code, 1 if --check finds drift."""
    parser = argparse.ArgumentParser(prog="scripts/generate_chart.py", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a file differs from what would be written"
    )
    parser.add_argument("--root", type=Path, default=_ROOT, help="root of the repository")
    options = parser.parse_args(arguments)
    chart = options.root / "helm/lorarl"
    crd = (options.root / "crds/lorarl.io_lorarljobs.yaml").read_text(encoding="utf-8")
    made = {
        chart / "files/lorarl.io_lorarljobs.yaml": crd,
        chart / "README.md": readme(
            (chart / "Chart.yaml").read_text(encoding="utf-8"), (chart / "values.yaml").read_text(encoding="utf-8")
        ),
    }
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if options.check:
            print(f"{path} differs from its source: run `make generate` and commit it", file=sys.stderr)
        else:
            path.write_text(made[path], encoding="utf-8")
            print(f"wrote {path}")
    return int(options.check and bool(stale))


def readme(chart: str, values: str) -> str:
    """Return the chart's README.md from the texts of Chart.yaml and values.yaml.

    Raises:
        UndocumentedValueError: a value has no comment.
    """
    about = yaml.safe_load(chart)
    comments = dict(_comments(values))
    rows = (
        f"| `{path}` | {default} | {comments[path].replace('|', '\\|')} |\n"
        for path, default in _rows(yaml.safe_load(values), comments)
    )
    return _HEAD.format(version=about["version"], description=about["description"]) + "".join(rows)


def _comments(values: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each commented key (`image.tag`) with the comment right above it."""
    above: list[str] = []
    within: list[tuple[int, str]] = []  # indent and name of the keys around a line
    for line in values.splitlines():
        if line.lstrip().startswith("#"):
            above.append(line.strip("# "))
        elif found := _KEY.match(line):
            indent = len(found[1])
            within = [(outer, name) for outer, name in within if outer < indent] + [(indent, found[2])]
            if above:
                yield ".".join(name for _, name in within), " ".join(above)
            above = []
        else:
            above = []


def _rows(values: dict[str, Any], comments: dict[str, str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value with its default. A value without comments inside is one row."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        if path not in comments:
            raise UndocumentedValueError(f"values.yaml: {path} has no comment. Write above it what it is for.")
        group = isinstance(value, dict) and any(inner.startswith(f"{path}.") for inner in comments)
        yield path, "" if group else f"`{json.dumps(value)}`"
        if group:
            yield from _rows(value, comments, f"{path}.")


if __name__ == "__main__":
    sys.exit(main())
