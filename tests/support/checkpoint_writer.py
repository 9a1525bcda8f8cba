"""A training run without the training: publishes checkpoints one after the other until it is killed. Run with: URI FIRST-WORD-OF-ITS-BYTES.

Fenced off, it starts again, as an impatient person would.
"""

from __future__ import annotations

import sys

from lorarl_trainer.errors import FencedError
from lorarl_trainer.storage import open_store
from support.checkpoints import checkpoint, checkpoints


def main(uri: str, writer: str) -> None:
    while True:
        run = checkpoints(open_store(uri))
        found = run.start("Auto").found
        step = found.manifest.step if found else 0
        try:
            while True:
                step += 10
                run.publish(checkpoint(step, writer))
                print(step, flush=True)
        except FencedError:
            continue


if __name__ == "__main__":
    main(*sys.argv[1:])
