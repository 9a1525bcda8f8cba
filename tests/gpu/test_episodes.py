"""Episodes of many turns on a GPU, in bf16: turns of others are generated while an environment answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.requests import LOGPROB_DIFFERENCE
from support.in_process import update_request
from support.tiny_tokenizers import write_tokenizer
from trainer.test_episodes import play, rows, samples, start

MEAN_DIFFERENCE = 0.02


def test_rollout_and_trainer_agree_about_every_turn(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(model_folder("qwen3-gpu"), tmp_path / "model")
    write_tokenizer(folder, template=None)
    gpu = {"cluster__gpusPerNode": 1, "rollout__gpuMemoryFraction": 0.04}
    worker = start(folder, tmp_path, scale=0.02, **gpu)
    made = play(worker, tmp_path, rows(64, slow=0.05), together=False, chat_template=False, ends=tuple(range(48, 64)))
    assert max(course.turns for course in made.courses) == 3
    limits = AgreementLimits(tolerance=0.05)
    result = worker.worker.update(update_request(samples(made), learning_rate=1e-4, limits=limits))
    assert result.disagreement is None and result.metrics[LOGPROB_DIFFERENCE] < MEAN_DIFFERENCE
    worker.close()
