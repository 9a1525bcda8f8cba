"""What scripts/setup.sh calls in a clone, with nothing but the standard library.

`python -m lorarl_trainer.install cpu|gpu LOCK` installs a lock, and `... added` what `lorarl env add` had added.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lorarl_trainer.errors import LorarlError
from lorarl_trainer.install.install import install
from lorarl_trainer.install.packages import add_again


def main() -> None:
    """Install into the environment that runs this."""
    parser = argparse.ArgumentParser(prog="python -m lorarl_trainer.install", description=__doc__)
    parser.add_argument("what", choices=["cpu", "gpu", "added"])
    parser.add_argument("lock", type=Path, nargs="?")
    options = parser.parse_args()
    try:
        if options.what == "added":
            add_again(_say)
        else:
            install(options.lock, options.what, _say)
    except LorarlError as error:
        sys.exit(f"setup: {error}")


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
