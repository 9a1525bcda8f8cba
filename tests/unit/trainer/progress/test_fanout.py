"""Sinks neither slow down training nor stop it."""

import io
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

import pytest

from lorarl_api.v1alpha1 import TrackingSpec
from lorarl_trainer.progress import Event, Progress, StepDone, Warned, open_progress
from lorarl_trainer.progress import fanout as fanout_module
from lorarl_trainer.progress.metrics_file import MetricsFile
from unit.trainer.progress.runs import Recorder, grpo_run, grpo_step, run_started


def fails(event: Event) -> None:
    raise ConnectionError("the server\nis down.")


@pytest.mark.parametrize("queued", [True, False])
def test_a_failing_sink_costs_one_warning_and_the_others_continue(tmp_path: Path, queued: bool) -> None:
    good, bad = (
        Recorder("good"),
        Recorder("W&B", on_event=lambda event: fails(event) if isinstance(event, StepDone) else None),
    )
    with Progress([] if queued else [bad], [good, bad] if queued else [good]) as progress:
        for event in grpo_run(tmp_path, total=20):
            progress.emit(event)
    assert len(good.of(StepDone)) == 20
    assert good.of(Warned) == [
        Warned("W&B: the server is down. Training continues, but nothing more is written there.")
    ]


def test_first_events_from_several_threads_reach_a_sink_in_one() -> None:
    """Sinks emit warnings from their own threads, also while the run ends."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            handlers: set[int] = set()
            sink = Recorder(on_event=lambda _, handlers=handlers: handlers.add(threading.get_ident()))
            progress, together = Progress([], [sink]), threading.Barrier(8)

            def emit(progress: Progress = progress, together: threading.Barrier = together) -> None:
                together.wait()
                progress.emit(Warned("low on memory"))

            threads = [threading.Thread(target=emit) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            progress.close()
            assert (len(sink.events), len(handlers)) == (8, 1)
    finally:
        sys.setswitchinterval(interval)


def test_a_full_disk_costs_one_warning(tmp_path: Path) -> None:
    seen, soft_hard = Recorder(), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # The operating system refuses to write after a few lines.
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, soft_hard[1]))
        with Progress([MetricsFile(tmp_path)], [seen]) as progress:
            for event in grpo_run(tmp_path, total=20):
                progress.emit(event)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft_hard)
    assert len(seen.of(StepDone)) == 20
    assert [str(event) for event in seen.of(Warned) if "metrics.jsonl: [Errno 27] File too large" in str(event)] != []
    assert len(seen.of(Warned)) == 1


def test_a_hanging_sink_delays_no_other(tmp_path: Path) -> None:
    released = threading.Event()
    good, hanging = Recorder("good"), Recorder("MLflow", on_event=lambda event: released.wait() and None)
    progress = Progress([], [good, hanging], close_seconds=5.0)
    for event in grpo_run(tmp_path, total=20):
        progress.emit(event)
    progress.close()
    released.set()
    assert len(good.of(StepDone)) == 20
    assert "MLflow: it did not finish within 5 s" in str(good.of(Warned))


def test_a_sink_that_falls_far_behind_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout_module, "MAX_BEHIND", 100)
    released = threading.Event()
    good, slow = Recorder("good"), Recorder("slow", on_event=lambda event: released.wait() and None)
    with Progress([good], [slow]) as progress:
        for step in range(1, 301):
            progress.emit(grpo_step(step, 300))
        released.set()
    assert len(good.of(Warned)) == 1
    assert "100 events behind" in str(good.of(Warned))


def test_every_sink_is_closed_after_its_last_event(tmp_path: Path) -> None:
    sinks = [Recorder(str(index)) for index in range(3)]
    with Progress(sinks[:1], sinks[1:]) as progress:
        for event in grpo_run(tmp_path, total=50):
            progress.emit(event)
    assert [(sink.closed, len(sink.events)) for sink in sinks] == [(True, 58)] * 3


def test_a_step_costs_the_loop_a_fraction_of_what_it_may(tmp_path: Path) -> None:
    # The loop may cost 5% of a step of 0.6 s, which is 30 ms. Progress costs the call of `emit`, and the time that its
    # threads hold the interpreter.
    steps = [grpo_step(step, 400) for step in range(1, 401)]
    calls = []
    with open_progress(tmp_path, TrackingSpec(), {}, stream=io.StringIO()) as progress:
        progress.emit(run_started(tmp_path, 400))
        for event in steps[:50]:
            progress.emit(event)
        deadline = time.monotonic() + 20
        while not list(tmp_path.glob("tensorboard/*")) and time.monotonic() < deadline:
            time.sleep(0.01)  # in a run, TensorBoard is imported while the engines start
        busy = time.process_time()
        for event in steps[50:]:
            started = time.perf_counter()
            progress.emit(event)
            calls.append(time.perf_counter() - started)
    busy = (time.process_time() - busy) / len(calls)
    assert median(calls) < 3e-3
    assert busy < 10e-3


def test_progress_imports_nothing_heavy() -> None:
    heavy = {"torch", "vllm", "matplotlib", "tensorboard", "wandb", "mlflow", "jinja2", "numpy"}
    code = f"import sys, lorarl_trainer.progress; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
