"""`python -m lorarl_api.generate`: write what is made from the models; with --check, say whether it is up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lorarl_api.crdgen import crd_yaml
from lorarl_api.reference import reference

_ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write crds/lorarl.io_lorarljobs.yaml and docs/reference.md, or compare them. Gives the exit code: 1 where --check finds drift."""
    parser = argparse.ArgumentParser(prog="python -m lorarl_api.generate", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where a file differs from what would be written"
    )
    parser.add_argument("--root", type=Path, default=_ROOT, help="root of the repository")
    options = parser.parse_args(arguments)
    made = {
        options.root / "crds/lorarl.io_lorarljobs.yaml": crd_yaml(),
        options.root / "docs/reference.md": reference(),
    }
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if options.check:
            print(f"{path} is not what the models say; run `make generate` and commit it", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
            print(f"wrote {path}")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
