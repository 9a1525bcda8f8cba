"""`python -m lorarl.child PARENT ...`: the command `lorarl ...`, which gets SIGTERM when its parent ends.

So a notebook whose kernel is restarted keeps no GPU: the run publishes a checkpoint and ends.
"""

from __future__ import annotations

import signal
import sys

from lorarl_trainer.cli import main
from lorarl_trainer.rewards.code.confinement import signal_at_parents_end

if __name__ == "__main__":
    signal_at_parents_end(int(sys.argv.pop(1)), signal.SIGTERM)
    main(prog_name="lorarl")
