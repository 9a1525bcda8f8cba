"""`python -m lorarl_trainer.cli.kubectl`."""

from lorarl_trainer.cli.kubectl import main

main(prog_name="kubectl lorarl")
