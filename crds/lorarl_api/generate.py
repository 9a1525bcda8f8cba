"""`python -m lorarl_api.generate`: write the files that are generated from the models; with --check, compare them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lorarl_api.algorithms_page import with_list, with_table
from lorarl_api.crdgen import definitions
from lorarl_api.page import update
from lorarl_api.reference import reference, with_schedule_fields, with_sweep_fields

_ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the CRDs in crds/, docs/reference.md and the lists of algorithms, or compare them.

    Returns:
        The exit code: 1 if --check finds a difference.
    """
    parser = argparse.ArgumentParser(prog="python -m lorarl_api.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    parser.add_argument("--root", type=Path, default=_ROOT, help="root of the repository")
    options = parser.parse_args(arguments)
    made = {
        **{options.root / "crds" / name: text for name, text in definitions().items()},
        options.root / "docs/reference.md": reference(),
    }
    for name, updated in {
        "docs/algorithms.md": with_table,
        "README.md": with_list,
        "docs/schedules.md": with_schedule_fields,
        "docs/sweeps.md": with_sweep_fields,
    }.items():
        if (page := options.root / name).exists():
            made[page] = updated(page.read_text(encoding="utf-8"))
    return update(made, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
