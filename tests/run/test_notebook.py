"""The notebook of examples/, cell by cell: its run is interrupted once, resumed, and evaluated."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import lorarl
from lorarl_trainer.progress import read_rows
from run.notebook import Notebook
from support.cluster.processes import until

FILE = Path(__file__).resolve().parents[2] / "examples/notebook.ipynb"
OUT = Path("out/small-letters")
PATIENCE_SECONDS = 240.0


@pytest.fixture(scope="module")
def notebook(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """The notebook after its last cell."""
    notebook = Notebook(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        Path("base").symlink_to(base)
        train = notebook.number_of("run = lorarl.train(")
        for number in range(train):
            notebook.run(number)
        presser = threading.Thread(target=_press_stop_after_a_step)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            notebook.run(train)
        presser.join()
        assert lorarl.load("small-letters").state == "interrupted"
        for number in range(train, len(notebook.cells)):
            notebook.run(number)
        yield notebook


def _press_stop_after_a_step() -> None:
    """As a notebook's stop button: SIGINT for the kernel's main thread alone."""
    until(PATIENCE_SECONDS, "a step is done", lambda: any("loss" in row for row in read_rows(OUT / "metrics.jsonl")))
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_the_notebook_is_stored_without_results() -> None:
    code = [cell for cell in Notebook(FILE).file["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.long
def test_the_stopped_run_resumed_and_is_whole(notebook: Notebook) -> None:
    run = notebook.names["run"]
    assert run.state == "succeeded" and len(run.summary["starts"]) == 2
    assert run.summary["resumed_from_step"] >= 1
    assert list(run.metrics.index) == list(range(21))
    assert "step 20 of 20" in run._repr_html_() and "<svg" in run._repr_html_()


@pytest.mark.long
def test_the_reward_of_the_notebook_scored(notebook: Notebook) -> None:
    metrics = notebook.names["run"].metrics
    assert metrics["reward/letters"].max() > 0
    (code,) = OUT.glob("inputs/reward-*/notebook_rewards.py")
    assert "LETTERS = re.compile" in code.read_text()


@pytest.mark.long
def test_base_and_adapter_are_compared_on_the_held_out_rows(notebook: Notebook) -> None:
    (found,) = [shown for shown in notebook.shown if isinstance(shown, lorarl.Evaluation)]
    assert found.result["rows"] == len(notebook.names["held_out"])
    summary = notebook.names["run"].summary
    assert found.table.loc["score", ["base", "adapter"]].tolist() == pytest.approx(
        [summary["eval_before"], summary["eval_after"]]
    )
    assert "<table" in found._repr_html_() and "reward/letters" in repr(found)


@pytest.mark.long
def test_a_mistake_that_only_the_run_finds_is_raised_with_its_fix(notebook: Notebook) -> None:
    job = yaml.safe_load((OUT / "inputs/job.yaml").read_text())
    with pytest.raises(lorarl.LorarlError, match=r"spec\.data\.train\.promptField: got prompt, .* \(question\)"):
        lorarl.train(job, reward="exact", data=[{"question": "a"}], overrides={"metadata.name": "other"})
    with pytest.raises(lorarl.InputError, match=r"--out: got .*which has the run of the job small-letters"):
        lorarl.train(job, data=[{"prompt": "a"}], reward="exact", overrides={"metadata.name": "other"}, out=OUT)
