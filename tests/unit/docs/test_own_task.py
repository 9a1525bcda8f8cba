"""README's first own task: its row, its reward and its commands work together."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from lorarl_api.load import load_job
from lorarl_trainer.cli import main
from support.tiny_tokenizers import CHATML, write_tokenizer
from unit.trainer.planning.shapes import SHAPES

ROOT = Path(__file__).resolve().parents[3]
SECTION = (ROOT / "README.md").read_text().partition("## Your own task")[2].partition("\n## ")[0]
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```", SECTION, re.M | re.S))


def test_the_row_and_the_reward_fit_together() -> None:
    row, code = json.loads(BLOCKS["json"]), {}
    exec(BLOCKS["python"], code)
    scores = [code["score"](row["prompt"], said, row["answer"], row) for said in ("91", "It is 91.", "90", "")]
    assert scores == [1.0, 0.5, 0.0, 0.0]


def test_init_takes_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tokenizer(tmp_path / "base", template=CHATML)
    (tmp_path / "base" / "config.json").write_text(json.dumps(SHAPES["0.5B"]))
    for name in ("train", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text(BLOCKS["json"])
    (tmp_path / "my_reward.py").write_text(BLOCKS["python"])
    monkeypatch.chdir(tmp_path)
    (command,) = [line for line in SECTION.splitlines() if line.startswith("lorarl init")]
    done = CliRunner().invoke(main, [*shlex.split(command, comments=True)[1:], "--gpus", "0"])
    assert done.exit_code == 0, done.output
    spec = load_job(tmp_path / "job.yaml").spec
    assert spec.reward is not None and spec.reward.function == "my_reward:score"
    assert spec.data.eval is not None and spec.data.eval.uri == "file:held_out.jsonl"
    assert (ROOT / "examples/smollm2/make_base.py").is_file() and "make_base.py --out ../my-task/base" in SECTION
