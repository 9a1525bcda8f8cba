"""`python -m lorarl_trainer.environment cpu|gpu LOCK`: what scripts/setup.sh calls before any package is there."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lorarl_trainer.environment.install import install
from lorarl_trainer.errors import LorarlError


def main() -> None:
    """Install a lock of a clone into the environment that runs this."""
    parser = argparse.ArgumentParser(prog="python -m lorarl_trainer.environment", description=__doc__)
    parser.add_argument("flavour", choices=["cpu", "gpu"])
    parser.add_argument("lock", type=Path)
    options = parser.parse_args()
    try:
        install(options.lock, options.flavour, lambda line: print(line, file=sys.stderr))
    except LorarlError as error:
        sys.exit(f"setup: {error}")


if __name__ == "__main__":
    main()
