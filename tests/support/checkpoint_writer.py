"""A run without training: publishes checkpoints until it is killed. Run with: URI FIRST-WORD-OF-ITS-BYTES.

Fenced off, it starts again, after a moment.
"""

from __future__ import annotations

import random
import sys
import time

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
            time.sleep(random.uniform(0, 0.2))  # they would fence each other off forever


if __name__ == "__main__":
    main(*sys.argv[1:])
