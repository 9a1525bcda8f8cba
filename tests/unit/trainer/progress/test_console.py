"""The console prints what a person needs to see during training."""

import io
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.progress import CheckpointDone, Downloading, EvalDone, Event, Noted, RunFinished, Warned
from lorarl_trainer.progress.console import ConsoleSink, TimeLeft, collapse_layers
from lorarl_trainer.progress.downloads import downloads_to
from lorarl_trainer.progress.fanout import Progress
from lorarl_trainer.progress.start_bar import download_text, duration, start_time
from unit.trainer.progress.runs import (
    grpo_run,
    grpo_step,
    run_finished,
    run_started,
    sft_step,
    started_up,
    with_metrics,
)


@dataclass
class Collect:
    events: list[Event]
    name = "collect"

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None: ...


def shown_in_a_pipe(events: list[Event]) -> str:
    stream = io.StringIO()
    sink = ConsoleSink(stream)
    for event in events:
        sink.on_event(event)
    sink.close()
    return stream.getvalue()


def shown_on_a_terminal(events: list[Event]) -> str:
    master, slave = os.openpty()
    output = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(master, 65536):
                output.extend(chunk)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(slave, "w") as stream:
        sink = ConsoleSink(stream)
        for event in events:
            sink.on_event(event)
        sink.close()
    reader.join()
    os.close(master)
    return output.decode()


def test_a_pipe_gets_plain_lines_and_one_per_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on CI, where the output is still a file
    text = shown_in_a_pipe(grpo_run(tmp_path, total=30))
    assert "\x1b" not in text
    assert "\r" not in text
    assert [line for line in text.splitlines() if line.startswith("step 12/30")] == [
        "step 12/30  reward 0.797  signal 6/8  entropy 0.363  KL 3.24e-02  3,600 tokens/s  0.65 s  0:12 left"
    ]
    assert sum(line.startswith("step ") and "/30" in line for line in text.splitlines()) == 30


def test_a_terminal_also_gets_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    text = shown_on_a_terminal(grpo_run(tmp_path, total=30))
    assert "\x1b[" in text
    assert "━" in text
    assert "step 30/30" in text
    assert text.count("reward 0.797  signal 6/8  entropy") == 1
    assert text.rstrip().endswith("succeeded after step 30, 0:46 in total")


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown_on_a_terminal(grpo_run(tmp_path, total=3))


def test_the_start_says_what_is_trained(tmp_path: Path) -> None:
    text = shown_in_a_pipe([run_started(tmp_path, 30, resumed_from_step=10)])
    assert "model.layers.{0-3}.self_attn.q_proj\n" in text
    assert "trainable parameters: 225,280 of 1,022,080 (22.04%)" in text
    assert "\nresuming after step 10\n" in text


def test_a_resumed_run_says_what_its_manifest_changes(tmp_path: Path) -> None:
    started = replace(run_started(tmp_path, 30, resumed_from_step=5), changes=("trainer.learningRate 2e-05 -> 0.0001",))
    assert "\nresuming after step 5; trainer.learningRate 2e-05 -> 0.0001\n" in shown_in_a_pipe([started])


def test_the_checkpoint_that_a_run_resumes_from_is_no_new_one(tmp_path: Path) -> None:
    checkpoints = [
        CheckpointDone(step=step, uri=f"file:/c/{step}", version=step, sha256="", published_at="") for step in (10, 12)
    ]
    text = shown_in_a_pipe([run_started(tmp_path, 30, resumed_from_step=10), *checkpoints])
    assert "checkpoint of step 12: file:/c/12\n" in text, "it may come after lines of later steps"
    assert "file:/c/10" not in text


def test_where_the_time_of_a_start_went_is_left_to_the_report() -> None:
    assert shown_in_a_pipe([started_up()]) == ""


def test_a_terminal_sees_what_a_start_is_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    text = shown_on_a_terminal([Noted("starting Ray and 1 worker(s); imports take longest")])
    assert "\x1b[" in text
    assert "0:00" in text


def test_a_terminal_sees_how_far_a_download_is_and_a_pipe_that_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    model, told = "hf://org/model", list[Event]()
    tell = downloads_to(Progress([Collect(told)], []))
    for done in (0, 1_200_000_000, 4_700_000_000):
        tell(model, done, 4_700_000_000)
    tell("s3://bucket/train.jsonl", 0, 40_000)
    assert told[0] == Noted("downloading hf://org/model, 4.7 GB")
    assert told[1:] == [Downloading(model, done, 4_700_000_000) for done in (0, 1_200_000_000, 4_700_000_000)]
    assert shown_in_a_pipe(told) == "downloading hf://org/model, 4.7 GB\n"
    under_way = shown_on_a_terminal(told[:3])
    assert "1.2 GB of 4.7 GB" in under_way
    assert "━" in under_way


def test_the_time_left_of_a_download_is_shown_once_it_is_known() -> None:
    assert download_text(0, 3_400_000, None) == "0 bytes of 3.4 MB"
    assert download_text(1_200_000_000, 4_700_000_000, 72.4) == "1.2 GB of 4.7 GB, about 1:12 left"


@pytest.mark.parametrize(
    ("passed", "last", "text"),
    [
        (7, None, "0:07"),
        (7, 30, "0:07, about 0:23 left"),
        (31, 30, "0:31, longer than the last start (0:30)"),
    ],
)
def test_the_time_left_of_a_start_is_that_of_the_last_one(passed: float, last: float | None, text: str) -> None:
    assert start_time(passed, last) == text


def test_a_failure_says_what_the_same_command_will_do() -> None:
    ended = RunFinished(state="failed", step=4, adapter_uri=None, total_seconds=9, what_next="the same command resumes")
    assert shown_in_a_pipe([ended]) == "failed after step 4, 0:09 in total; the same command resumes\n"


def test_sft_shows_its_loss_but_no_reward(tmp_path: Path) -> None:
    evaluation = EvalDone(step=1, rows=9, loss=0.5)
    text = shown_in_a_pipe(
        [run_started(tmp_path, 3, algorithm="sft"), sft_step(1, 3), evaluation, run_finished(tmp_path, 3)]
    )
    assert "step 1/3  loss 0.7518  9,000 tokens/s" in text
    assert "step 1  held-out loss 0.5000 (9 rows)" in text
    assert "reward" not in text
    assert "KL" not in text


def test_a_step_says_what_the_critic_explains() -> None:
    text = shown_in_a_pipe([with_metrics(grpo_step(1), **{"critic/explained_variance": 0.634})])
    assert "  critic explains 63%  " in text


def test_rewards_that_failed_are_counted_beside_their_mean() -> None:
    text = shown_in_a_pipe([with_metrics(grpo_step(1, reward=0.5), reward_failures=16, signal_share=0.0)])
    assert "reward 0.500 (48 of 64 scored)  signal 0/8  entropy" in text


def test_dynamic_sampling_counts_all_groups_that_were_generated() -> None:
    """4 of 68 groups have signal, and 100 of their 544 completions failed. The event has the 8 groups that are kept."""
    dynamic = {"sampling/prompts": 68.0, "signal_share": 4 / 68, "reward_failures": 100}
    text = shown_in_a_pipe([with_metrics(grpo_step(1, reward=0.5), **dynamic)])
    assert "reward 0.500 (444 of 544 scored)  signal 4/68  entropy" in text


def test_programs_that_were_stopped_are_counted_by_cause():
    shares = {"reward/code/stopped_timeout": 3 / 48, "reward/code/stopped_memory": 0.0, "reward/stopped_output": 1 / 48}
    step = with_metrics(grpo_step(1), reward_failures=16, **shares)
    assert "  programs stopped: 3 timeout, 1 output  " in shown_in_a_pipe([step])


@pytest.mark.parametrize("show", [shown_in_a_pipe, shown_on_a_terminal])
def test_brackets_in_a_path_are_not_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: object) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert callable(show)
    assert "[bold]/adapter" in show([run_started(tmp_path), Warned("cannot read [bold]/adapter"), grpo_step(1)])


def test_one_slow_step_does_not_change_the_time_left() -> None:
    left = TimeLeft()
    assert left.after_step(grpo_step(1, 100, pace=30.0)) > 1500
    for step in range(2, 8):
        after = left.after_step(grpo_step(step, 100))
    assert 0.6 * 93 < after < 0.75 * 93


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.4, "0:07"), (750, "12:30"), (59.7, "1:00"), (11_045, "3:04:05"), (float("nan"), "?")],
)
def test_durations_look_like_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_layers_are_collapsed_into_ranges() -> None:
    names = [f"model.layers.{n}.mlp.up_proj" for n in (0, 1, 2, 5)] + ["model.layers.7.self_attn.q_proj", "score"]
    assert collapse_layers(names) == ["score", "model.layers.{0-2,5}.mlp.up_proj", "model.layers.7.self_attn.q_proj"]


@given(st.sets(st.integers(0, 60), min_size=2))
def test_every_collapsed_layer_can_be_read_back(layers: set[int]) -> None:
    (name,) = collapse_layers(f"layers.{n}.q" for n in layers)
    ranges = [part.split("-") for part in name.removeprefix("layers.{").removesuffix("}.q").split(",")]
    assert {n for part in ranges for n in range(int(part[0]), int(part[-1]) + 1)} == layers
