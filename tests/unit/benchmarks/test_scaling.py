"""The rows of several GPUs: which are run, what is kept of them when the benchmark is killed, and their table."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.devices.base import Gpu
from scaling.book import make_missing
from scaling.machine import Machine, gpu_of, model_bytes
from scaling.rows import CPU_ROWS, ROWS, Row, chosen_rows
from scaling.table import markdown
from side_by_side.work import SHAPES, WORKS, Work, attention_flops, train_flops
from toy import read_figures

GB = 1_000_000_000
H200 = Gpu(150 * GB, 149 * GB, "NVIDIA H200", (9, 0))
BY_NAME = {row.name: row for row in (*ROWS, *CPU_ROWS)}
EQUAL = [row for row in ROWS if row.group == "7b-equal"]
KILLED_IN_MID_ROW = """
import os, signal, sys
from pathlib import Path
from scaling.book import make_missing
from scaling.rows import chosen_rows, ROWS

def make(row):
    if row.gpus == 4:
        Path(sys.argv[1]).with_name("half").write_text("begun")
        os.kill(os.getpid(), signal.SIGKILL)
    return {"run": row.gpus}

make_missing(chosen_rows(ROWS, ["7b-equal"]), Path(sys.argv[1]), make)
"""


def record(name: str, seconds: float, **phases: float) -> dict[str, Any]:
    """A row whose steps took so long, 2.5 s of them to train."""
    row = BY_NAME[name]
    answers = row.work.completions * row.work.response_tokens
    step = {"seconds": seconds, "response_tokens": answers, "forward_backward": 2.5, **phases}
    run = {"size": row.size, "gpus": row.gpus, "work": vars(row.work), "steps": [step, step]}
    gpus = [] if row in CPU_ROWS else [{"name": "NVIDIA H200"}] * 8
    machine = {"gpus": gpus, "cpus": 128}
    about = {"date": "2026-11-30T19:00:00Z", "commit": "abc", "driver": "580", "matmul_tflops": 800.0}
    return {"row": name, **about, "machine": machine, "run": run}


def cells(records: list[dict[str, Any]], name: str) -> list[str]:
    """The cells of a row of the table: linear, target, reached, met."""
    found = next(line for line in markdown(records).splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in found.split("|")][4:8]


def test_a_benchmark_that_is_killed_in_mid_row_goes_on_with_that_row(tmp_path: Path) -> None:
    raw, script = tmp_path / "raw.json", tmp_path / "run.py"
    script.write_text(KILLED_IN_MID_ROW)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, str(script), str(raw)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL and (tmp_path / "half").exists()
    assert [kept["row"] for kept in json.loads(raw.read_text())] == ["7b-equal-1", "7b-equal-2"]
    made: list[str] = []

    def make(row: Row) -> dict[str, Any]:
        made.append(row.name)
        return {"run": row.gpus}

    assert make_missing(EQUAL, raw, make) == []
    assert made == ["7b-equal-4", "7b-equal-8"]
    assert [kept["run"] for kept in read_figures(raw, [])] == [1, 2, 4, 8]


def test_raw_figures_are_whole_if_it_is_killed_while_it_writes(tmp_path: Path, monkeypatch: Any) -> None:
    raw = tmp_path / "raw.json"
    make_missing(EQUAL[:1], raw, lambda row: {"run": row.gpus})
    write = Path.write_text

    def torn(path: Path, text: str) -> int:
        write(path, text[: len(text) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", torn)
    with pytest.raises(KeyboardInterrupt):
        make_missing(EQUAL, raw, lambda row: {"run": row.gpus})
    assert [kept["row"] for kept in json.loads(raw.read_text())] == ["7b-equal-1"]


def test_a_row_that_fails_leaves_the_others(tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"

    def make(row: Row) -> dict[str, Any]:
        if row.gpus == 2:
            raise ValueError("4 steps were made, expected 5")
        return {"run": row.gpus}

    assert make_missing(EQUAL, raw, make) == ["7b-equal-2: ValueError: 4 steps were made, expected 5"]
    assert [kept["run"] for kept in read_figures(raw, [])] == [1, 4, 8]
    assert make_missing(EQUAL, raw, lambda row: {"run": row.gpus}) == []
    assert [kept["run"] for kept in read_figures(raw, [])] == [1, 4, 8, 2]


def test_rows_are_chosen_by_name_or_group() -> None:
    assert len(BY_NAME) == len(ROWS) + len(CPU_ROWS), "each has another name"
    assert [row.name for row in chosen_rows(ROWS, ["a3b-4", "trl"])] == ["trl-2", "trl-4", "trl-8", "a3b-4"]
    assert chosen_rows(ROWS, []) == list(ROWS)
    with pytest.raises(ValueError, match=r"--rows: got 7b, expected some of 128k, 128k-2, .*"):
        chosen_rows(ROWS, ["7b", "trl"])


def test_the_rows_of_a_model_are_beside_each_other() -> None:
    sizes = [row.size for row in ROWS]
    assert sum(a != b for a, b in itertools.pairwise(sizes)) == len(set(sizes)) - 1


@pytest.mark.parametrize(
    ("name", "gpus", "room", "reason"),
    [
        ("7b-equal-2", 2, 20, None),
        ("7b-equal-4", 2, 20, "needs 4 GPUs, and this machine has 2"),
        ("7b-equal-1", 0, 20, "needs 1 GPUs, and this machine has 0"),
        ("70b-4", 4, 100, "its model takes 141 GB, and the models' folder has 100 GB left"),
        ("pods-8", 8, 20, "needs --job and KUBECONFIG, as bench_gpu_cluster.py does"),
    ],
)
def test_a_row_that_cannot_run_says_why(name: str, gpus: int, room: int, reason: str | None) -> None:
    assert Machine([H200] * gpus, "580", room * GB).why_not(BY_NAME[name]) == reason


def test_a_model_that_is_there_needs_no_room() -> None:
    assert Machine([H200] * 4, "580", 0, frozenset(["70b"])).why_not(BY_NAME["70b-4"]) is None


def test_a_row_without_a_plan_says_so() -> None:
    small = Gpu(24 * GB, int(23.4 * GB), "NVIDIA L4", (8, 9))
    reason = Machine([small], "580", 20 * GB).why_not(BY_NAME["7b-equal-1"])
    assert reason is not None and "GB that are free there" in reason


def test_gpus_are_read_from_their_driver() -> None:
    found = gpu_of(["NVIDIA H200", "143771", "143156", "9.0", "580.159.04"])
    assert found == Gpu(143_771 << 20, 143_156 << 20, "NVIDIA H200", (9, 0))


def test_throughput_is_compared_with_the_first_row() -> None:
    records = [record("7b-equal-1", 12.0), record("7b-equal-4", 12.5), record("7b-equal-8", 13.0)]
    assert cells(records, "7b-equal-1") == ["", "", "", ""]
    assert cells(records, "7b-equal-2") == ["", "", "not measured", ""]
    assert cells(records, "7b-equal-4") == ["0.96", "", "", ""]
    assert cells(records, "7b-equal-8") == ["0.92", "0.95 of linear", "0.92", "no"]
    assert cells(records[2:], "7b-equal-8") == ["", "0.95 of linear", "no first row", ""]


def test_a_planned_layout_is_compared_with_all_others() -> None:
    target = "MFU 0.5, within 5% of the best layout"
    tried = [record("70b-8", 40.0, forward_backward=20.0), record("70b-8-tp4", 41.0)]
    assert cells(tried, "70b-8") == ["", target, "0.59, 1.00 times the best of 2", ""]
    assert cells([*tried, record("70b-8-tp8", 38.5)], "70b-8")[2:] == ["0.59, 1.04 times the best of 3", "yes"]
    assert cells([*tried, record("70b-8-tp8", 30.0)], "70b-8")[2:] == ["0.59, 1.33 times the best of 3", "no"]


def test_other_targets_are_judged_by_their_figures() -> None:
    trl = [record("trl-8", 30.0), record("7b-equal-8", 12.5)]
    assert cells(trl, "trl-8")[1:] == ["2.5 times as fast as TRL", "2.4", "no"]
    assert cells(trl[:1], "trl-8")[2:] == ["no row 7b-equal-8", ""]
    engines = [record("engines-8", 10.0, sync=0.008)]
    assert cells(engines, "engines-8")[1:] == ["adapter to 7 engines in 10 ms", "8.0 ms", "yes"]
    long = [record("128k-4", 30.0, forward_backward=18.0)]
    assert cells(long, "128k-4")[1:] == ["MFU 0.42 with attention", "0.54", "yes"]
    pods = record("pods-8", 12.0)
    pods["run"] |= {"first_token_seconds": 58.0, "lost": {"seconds": 46.0}}
    target = "first token in 60 s, next step 45 s after a lost pod"
    assert cells([pods], "pods-8")[1:] == [target, "58 s, 46 s", "no"]


def test_the_table_says_where_rows_were_measured() -> None:
    told = markdown([record("7b-equal-1", 12.0), record("a3b-1", 12.0)]).splitlines()[0]
    assert told == "- 2026-11-30, NVIDIA H200, driver 580, 128 cores, commit abc: 7b-equal-1, a3b-1"
    of_cpus = markdown([record("cpu-1", 4.0), record("cpu-2", 4.0)])
    assert "2026-11-30, CPU, 128 cores, commit abc" in of_cpus and "7b-equal" not in of_cpus
    assert cells([record("cpu-1", 4.0), record("cpu-2", 5.0)], "cpu-2")[0] == "0.80"


def test_sizes_of_models_are_those_of_their_cards() -> None:
    assert {name: model_bytes(SHAPES[name]) // 2 // 10**8 for name in ("7b", "70b", "a3b", "a22b")} == {
        "7b": 76,
        "70b": 705,
        "a3b": 305,
        "a22b": 2350,
    }


def test_attention_needs_more_than_products_at_128k() -> None:
    work = WORKS["128k"][0]
    assert attention_flops(SHAPES["7b"], work) == pytest.approx(2.41e16, rel=0.01)
    assert train_flops(SHAPES["7b"], work, 8000) == pytest.approx(7e15, rel=0.01)
    assert attention_flops(SHAPES["7b"], Work()) < 0.02 * train_flops(SHAPES["7b"], Work(), 131_072)
