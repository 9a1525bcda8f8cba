"""The demo's own decisions: its data, its measure of accuracy and of memory."""

import importlib.util
import json
import os
import random
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


make_base, evaluate, demo = (
    load("examples/addition/make_base.py"),
    load("examples/addition/evaluate.py"),
    load("scripts/demo.py"),
)


def test_held_out_prompts_are_in_the_training_data_in_neither_order() -> None:
    train, held_out = make_base.split_pairs(0)
    assert len(held_out) == len(set(held_out)) == 512
    assert len(train) == len(set(train)) > 7000
    assert not set(train) & {pair for a, b in held_out for pair in ((a, b), (b, a))}


def test_another_seed_holds_out_other_prompts() -> None:
    assert make_base.split_pairs(0) == make_base.split_pairs(0)
    assert set(make_base.split_pairs(0)[1]) != set(make_base.split_pairs(1)[1])


@pytest.mark.parametrize(("a", "b", "wrong"), [(27, 35, 52), (12, 34, 46), (95, 15, 0), (7, 95, 92), (999, 1, 990)])
def test_dropped_carries_are_dropped_in_every_digit(a: int, b: int, wrong: int) -> None:
    assert make_base.add_without_carry(a, b) == wrong


def test_the_pretraining_corpus_is_wrong_as_often_as_its_docstring_says() -> None:
    generator = random.Random(0)
    train, held_out = make_base.split_pairs(0)
    sums = [make_base.sample_sum(train, generator) for _ in range(20_000)]
    carrying = [
        (p, a)
        for p, a in sums
        if make_base.add_without_carry(*map(int, p[:-1].split("+"))) != sum(map(int, p[:-1].split("+")))
    ]
    dropped = sum(int(answer) != sum(map(int, prompt[:-1].split("+"))) for prompt, answer in carrying) / len(carrying)
    assert abs(dropped - 0.65) < 0.02
    assert not {prompt for prompt, _ in sums} & {f"{a}+{b}=" for a, b in held_out}


def test_every_character_of_the_task_has_its_token() -> None:
    assert len(make_base.VOCABULARY) == len(set(make_base.VOCABULARY)) == 64
    assert set("0123456789+=") < set(make_base.VOCABULARY)


def test_a_base_model_that_is_up_to_date_is_not_made_again(tmp_path: Path) -> None:
    make_base.stamp_file(tmp_path).write_text(make_base.stamp_of(seed=3, threads=2))
    command = [sys.executable, ROOT / "examples/addition/make_base.py", "--out", tmp_path, "--seed", "3"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown == f"base model: {tmp_path} is up to date\n"
    assert make_base.stamp_of(seed=4, threads=2) != make_base.stamp_of(seed=3, threads=2)


def test_an_answer_counts_only_when_all_of_it_is_right_and_it_ends() -> None:
    eos = 1
    assert evaluate.completion_of([7, 8, eos, 9], eos) == [7, 8]
    assert evaluate.completion_of([7, 8, 9], eos) is None
    assert evaluate.completion_of([eos], eos) == []
    assert evaluate.share_correct(["46", "4", None, "461"], ["46", "46", "46", "46"]) == 0.25


def test_daemons_outside_the_tree_and_unmarked_workers_are_counted() -> None:
    run, daemon, worker = demo.Process(10, 2, True), demo.Process(11, 1, True), demo.Process(12, 11, False)
    orphan, stranger = demo.Process(13, 1, False), demo.Process(14, 1, False)
    assert demo.family([run, daemon, worker, orphan, stranger], known=frozenset({13, 99})) == {10, 11, 12, 13}


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps_rollup")
def test_memory_of_a_marked_process_and_of_its_child_is_measured() -> None:
    mark = uuid.uuid4().hex
    hold = "import sys; held = bytearray(b'x' * 40_000_000); print('ready', flush=True); sys.stdin.read()"
    # The child's environment is empty, as that of a Ray worker that wrote its title over it.
    code = f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {hold!r}], env={{}}); {hold}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, demo.MARK: mark}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == process.stdout.readline() == b"ready\n"
        held = demo.PeakMemory(mark).sample()
        assert process.stdin is not None
        process.stdin.close()
    assert 80_000_000 < held < 160_000_000
    assert demo.PeakMemory(mark).sample() == 0


def test_the_peak_outlives_the_processes() -> None:
    mark = uuid.uuid4().hex
    with (
        demo.PeakMemory(mark) as memory,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={**os.environ, demo.MARK: mark}) as process,
    ):
        deadline = time.monotonic() + 20
        while memory.peak_bytes == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.stdin is not None
        process.stdin.close()
    assert memory.peak_bytes > 0


def test_the_demos_summary_has_what_the_readme_promises() -> None:
    run = {"adapter_uri": "file:///a", "base_model": "/b", "train_seconds": 21.5, "mean_abs_logprob_diff": 1.3e-7}
    accuracy = {"accuracy_before": 0.3, "accuracy_after": 0.97, "held_out": 512}
    summary = demo.summarise(run, accuracy, total_seconds=120.0, peak_memory_bytes=3 * 2**30)
    assert json.loads(json.dumps(summary)) == {
        **run,
        **accuracy,
        "total_seconds": 120.0,
        "peak_memory_bytes": 3 * 2**30,
    }
    assert "30.0% -> 97.0%  (+67.0 points, 512 prompts, greedy)" in demo.table(summary, Path("report.html"))


@pytest.mark.parametrize(
    ("uri", "path"),
    [("file:///a b/c%20#1", Path("/a b/c%20#1")), ("file:out/demo", ROOT / "out/demo"), ("file:/a", Path("/a"))],
)
def test_the_adapters_uri_is_a_folder(uri: str, path: Path) -> None:
    assert demo.adapter_folder(uri) == path
