"""The tutorial shows the files that it runs: reward, manifest and data."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from lorarl_api.load import load_job

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples/receipts"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "docs/tutorial.md").read_text(), re.M | re.S)


def block(language: str, beginning: str) -> str:
    (found,) = (text for name, text in BLOCKS if name == language and text.startswith(beginning))
    return str(found)


def test_the_manifest_is_that_of_the_example() -> None:
    shown = block("yaml", "apiVersion")
    assert yaml.safe_load(shown) == yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    load_job(shown)


RUNS = [line for _, text in BLOCKS for line in text.splitlines() if line.startswith("lorarl run examples/receipts")]


def test_each_run_with_its_overrides_is_valid() -> None:
    overridden = [shlex.split(run)[4::2] for run in RUNS if "--set" in run]
    assert [load_job(EXAMPLE / "job.yaml", fields).spec.algorithm.type for fields in overridden] == ["sft", "grpo"]


def test_the_reward_is_that_of_the_example() -> None:
    """But for the types, which a user need not write."""
    example = ast.parse((EXAMPLE / "receipts.py").read_text())
    (function,) = (node for node in example.body if isinstance(node, ast.FunctionDef))
    function.returns = None
    for parameter in function.args.args:
        parameter.annotation = None
    example.body = example.body[1:]  # without the docstring
    assert ast.unparse(example) == ast.unparse(ast.parse(block("python", "import re")))


def test_the_row_is_the_first_that_the_script_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, EXAMPLE / "make_data.py", "--out", tmp_path], check=True)
    train, held_out = ((tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("train", "held_out"))
    assert block("", '{"prompt"').strip() == train[0]
    assert (len(train), len(held_out)) == (600, 96)
    bought = [set(re.findall(r"(\w+) \d+ dollars", "".join(rows))) for rows in (train, held_out)]
    assert bought[0].isdisjoint(bought[1]), "the held-out rows are about other things"


def test_the_reward_scores_what_the_page_says() -> None:
    spec = importlib.util.spec_from_file_location("receipts", EXAMPLE / "receipts.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    row = json.loads(block("", '{"prompt"'))
    scores = [
        module.score(row["prompt"], said, row["answer"], row)["score"] for said in ("11", "The tea cost 52.", "12")
    ]
    assert scores == [1.0, 0.2, 0.0]
