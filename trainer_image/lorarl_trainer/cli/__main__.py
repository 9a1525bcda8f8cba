"""`python -m lorarl_trainer.cli`."""

from lorarl_trainer.cli import main

main(prog_name="lorarl")
