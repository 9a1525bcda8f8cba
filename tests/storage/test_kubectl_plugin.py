"""`kubectl lorarl` after the cluster is gone: from the bucket alone, with the keys of the environment."""

from __future__ import annotations

import os
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lorarl_trainer.cli.kubectl import main
from lorarl_trainer.progress import CheckpointDone, Event, RunFinished, Warned
from lorarl_trainer.progress.serve import open_server
from lorarl_trainer.record.reader import JobRecord
from lorarl_trainer.storage import Store, open_store
from support.browser import browser
from support.records import record_run
from support.s3_server import S3Server
from unit.trainer.progress.runs import grpo_run, grpo_step, run_finished, run_started, sampled

JOB = "addition"
FAILED = RunFinished(
    state="failed",
    step=7,
    adapter_uri=None,
    total_seconds=9.0,
    reason="WorkerFailed",
    message="a worker failed: CUDA error: an illegal memory access",
)


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> str:
    return s3.make_bucket("records")


@pytest.fixture(scope="module")
def uri(s3: S3Server, bucket: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job whose first run failed after step 7 with a checkpoint of step 4, and whose second made all 8."""
    folder = tmp_path_factory.mktemp("pods")
    store = open_store(f"s3://{bucket}/adapters", s3.secret())
    begun: list[Event] = [run_started(folder, 8), *(grpo_step(step, 8) for step in range(1, 8)), sampled(7)]
    saved = CheckpointDone(step=4, uri="s3://x", version=5, sha256="", published_at="")
    log = "".join(f"printed line {number}\n" for number in range(40))
    record_run(store, JOB, folder / "1", [*begun, saved, Warned("step 3 was slow"), FAILED], log, attempt=1)
    resumed = [run_started(folder, 8, resumed_from_step=4), *(grpo_step(step, 8) for step in range(5, 9)), sampled(8)]
    record_run(store, JOB, folder / "2", [*resumed, run_finished(folder, 8)], "all went well\n", attempt=2)
    record_run(store, "other", folder / "3", grpo_run(folder, total=5), "", attempt=1)
    return f"s3://{bucket}/adapters/{JOB}"


@pytest.fixture(autouse=True)
def _keys(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name, value in s3.secret().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(tmp_path))  # there is no kubectl
    return


def lorarl(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_why_says_how_each_run_ended(uri: str) -> None:
    done = lorarl("why", "--record", uri)
    assert done.exit_code == 0, done.output
    first, second = [line for line in done.output.splitlines() if line.startswith("000")]
    assert "0 to 7" in first
    assert "failed" in first
    assert "WorkerFailed: a worker failed: CUDA error" in first
    assert "4 to 8" in second
    assert "succeeded" in second
    assert "printed" not in done.output, "the newest run ended well"


def test_why_shows_the_end_of_the_log_of_a_run_that_failed(s3: S3Server, bucket: str, uri: str, tmp_path: Path) -> None:
    store = open_store(f"s3://{bucket}/failed", s3.secret())
    log = "".join(f"printed line {number}\n" for number in range(40))
    record_run(store, JOB, tmp_path / "pod", [Warned("low on memory"), FAILED], log, attempt=1)
    done = lorarl("why", "--record", f"s3://{bucket}/failed/{JOB}/runs/0001")
    assert "warning: low on memory" in done.output
    assert done.output.splitlines()[-1] == "  printed line 39"
    assert "printed line 2\n" not in done.output


def test_a_run_that_recorded_no_end_was_lost(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    store = open_store(f"s3://{bucket}/lost", s3.secret())
    for attempt in (1, 2):
        record_run(store, JOB, tmp_path / f"{attempt}", [run_started(tmp_path, 8)], "", attempt=attempt)
    states = [(run.state, run.run.attempt) for run in JobRecord(store, JOB).history()]
    assert states == [("lost", 1), ("running or lost", 2)]


def test_a_start_in_the_folder_of_an_earlier_one_has_its_own_end(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """As with `lorarl run` on one machine, whose folder stays."""
    store = open_store(f"s3://{bucket}/same-folder", s3.secret())
    record_run(store, JOB, tmp_path / "out", [run_started(tmp_path, 8), FAILED], "", attempt=1)
    record_run(store, JOB, tmp_path / "out", [run_started(tmp_path, 8)], "", attempt=2)
    assert [run.state for run in JobRecord(store, JOB).history()] == ["failed", "running or lost"]


def test_logs_of_each_run(uri: str) -> None:
    assert lorarl("logs", "--record", uri).output == "all went well\n"
    assert lorarl("logs", "--record", uri, "--run", "1", "--tail", "2").output == "printed line 38\nprinted line 39\n"
    none = lorarl("logs", "--record", uri, "--file", "worker-9.log")
    assert none.exit_code == 1
    assert "a log of run 0002: driver.log" in none.output


def test_samples_of_the_newest_step_and_of_one_before_the_restart(uri: str) -> None:
    newest = lorarl("samples", "--record", uri).output
    assert newest.startswith("step 8\n")
    assert "reward 1, advantage +0.50" in newest
    refused = lorarl("samples", "--record", uri, "--step", "99")
    assert refused.exit_code == 1
    assert "a step from 8 to 8" in refused.output, "step 7 was repeated"


def test_compare_shows_the_whole_curves_of_both_jobs(uri: str, tmp_path: Path) -> None:
    page, other = tmp_path / "page.html", f"{uri.rpartition('/')[0]}/other"
    done = lorarl("compare", "--record", uri, "--record", other, "--page", str(page))
    assert done.exit_code == 0, done.output
    (steps,) = [line.split() for line in done.output.splitlines() if line.startswith("steps")]
    assert steps == ["steps", "8", "of", "8", "5", "of", "5"]
    assert page.read_text().count("<html") == 1


@contextmanager
def opened(uri: str, folder: Path) -> Iterator[str]:
    """The address of the report, as `kubectl lorarl open` serves it."""
    store: Store = open_store(uri.rpartition("/")[0], dict(os.environ))
    JobRecord(store, JOB).fetch(folder)
    with open_server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def test_the_report_has_all_runs_as_one_curve_with_their_marks(uri: str, tmp_path: Path) -> None:
    with opened(uri, tmp_path) as address, urllib.request.urlopen(address + "data.json") as answer:
        data = answer.read().decode()
    assert '"steps":[1,2,3,4,5,6,7,8]' in data
    assert data.count('"resumed_from_step":4') >= 1


@pytest.mark.slow
def test_a_browser_shows_one_curve_over_all_runs(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)  # where Chromium is
    with browser(tmp_path / "profile") as page, opened(uri, tmp_path / "record") as address:
        page.open(address)
        page.wait_for("document.querySelector('.plot canvas')")
        page.focus(".plot")
        page.press("Home")
        shown = []
        for _ in range(8):
            shown.append(re.search(r"training\s*\d\S*\s+step (\d+)", page.text(".legend")))
            page.press("ArrowRight")
        assert [found and int(found[1]) for found in shown] == [1, 2, 3, 4, 5, 6, 7, 8], page.text(".legend")
        starts = (
            "[...document.querySelectorAll('li')].map((row) => row.textContent).filter((row) => row.includes(': '))"
        )
        first, second = [row for row in page.evaluate(starts) if "from the beginning" in row or "resumed" in row]
        assert "from the beginning" in first
        assert "resumed after step 4" in second
        assert page.errors == []


@pytest.mark.parametrize("wrong", ["gsm8k", "s3://team", "s3://team/runs", "s3:///x"])
def test_a_uri_that_names_no_job_is_refused(wrong: str) -> None:
    done = lorarl("why", "--record", wrong)
    assert done.exit_code == 1
    assert done.output.startswith(f"lorarl: --record: got {wrong}, expected the folder of a job")


def test_a_folder_without_records_is_refused(bucket: str) -> None:
    done = lorarl("why", "--record", f"s3://{bucket}/adapters/none")
    assert "s3://records/adapters/none/runs, which has none, expected a record of the job none" in done.output


def test_without_kubectl_the_error_names_the_way_out() -> None:
    done = lorarl("why", "gsm8k")
    assert "kubectl is not on the PATH. Install it, or name the record: --record s3://..." in done.output
