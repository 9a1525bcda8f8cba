"""The driver is a light process: what it imports stays clear of the heavy packages."""

from __future__ import annotations

import subprocess
import sys

VALIDATE = """
import sys
from lorarl_trainer.cli import main
try:
    main(["validate", "examples/addition-cpu.yaml"], standalone_mode=False)
except SystemExit as end:
    print(end.code, "lorarl_trainer.launch.run" in sys.modules)
"""
HEAVY = ("torch", "vllm", "megatron", "transformers", "ray", "matplotlib", "wandb", "mlflow", "tensorboard")


def test_the_driver_imports_nothing_heavy_before_it_needs_it() -> None:
    code = f"import lorarl_trainer.launch.run, sys; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_command_answers_without_loading_the_trainer() -> None:
    result = subprocess.run([sys.executable, "-c", VALIDATE], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "0 False"
