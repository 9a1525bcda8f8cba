"""TensorBoard, Weights & Biases and MLflow get the numbers of metrics.jsonl. The packages are real but offline."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.summary.writer import event_file_writer

from lorarl_api.v1alpha1 import MlflowSpec, TrackingSpec, WandbSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.progress import Event, Progress, Sink, Warned, open_progress, read_rows
from lorarl_trainer.progress.events import scalars_of
from lorarl_trainer.progress.tensorboard_sink import TensorBoardSink, markdown_of, tag_of
from lorarl_trainer.progress.trackers import MlflowSink, WandbSink, trackers
from unit.trainer.progress.runs import Recorder, grpo_run, grpo_step, run_started, sampled, sft_step, with_metrics

pytestmark = pytest.mark.slow

WANDB = WandbSpec(project="tests")


@pytest.fixture(autouse=True)
def fresh_wandb() -> Iterator[None]:
    """Reset W&B, which reads the environment once per process. Each test has its own environment."""
    yield
    if wandb := sys.modules.get("wandb"):
        wandb.teardown()


def play(sink: Sink, events: Iterable[Event]) -> None:
    for event in events:
        sink.on_event(event)
    sink.close()


def tensorboard_rewards(folder: Path) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder)).Reload()
    return {event.step: event.value for event in accumulator.Scalars("reward/mean")}


def test_scalars_have_the_names_of_metrics_jsonl() -> None:
    scalars = scalars_of(grpo_step(3))
    assert scalars["mean_abs_logprob_diff"] == grpo_step(3).metrics["mean_abs_logprob_diff"]
    assert scalars["seconds/generate"] == 0.42
    assert "step" not in scalars


def test_metrics_that_an_algorithm_does_not_have_are_not_sent() -> None:
    assert not {"reward_mean", "kl", "truncated_share"} & set(scalars_of(sft_step(1)))


def test_tensorboard_can_read_back_every_step(tmp_path: Path) -> None:
    play(TensorBoardSink(tmp_path), grpo_run(tmp_path, total=20))
    assert tensorboard_rewards(tmp_path) == {
        step: pytest.approx(grpo_step(step, 20).metrics["reward_mean"]) for step in range(1, 21)
    }


def test_tensorboard_has_groups_texts_and_settings(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = grpo_run(tmp_path, total=20)
    play(TensorBoardSink(tmp_path), [*events, sampled(20), sampled(20, evaluation=True)])
    accumulator = EventAccumulator(str(tmp_path)).Reload()
    tags = accumulator.Tags()
    assert {tag.partition("/")[0] for tag in tags["scalars"]} == {"train", "eval", "reward", "perf"}
    assert {"train/grad_norm", "eval/score", "perf/seconds/generate"} <= set(tags["scalars"])
    assert set(accumulator.PluginTagToContent("text")) == {"samples/training", "samples/held_out"}
    (text,) = accumulator.Tensors("samples/training")
    assert b"    completion 3 of step 20" in text.tensor_proto.string_val[0]
    (content,) = accumulator.PluginTagToContent("hparams").values()
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["metadata.name"].string_value == "addition"


def test_every_metric_has_a_group() -> None:
    for name, tag in {
        "loss": "train/loss",
        "signal_share": "reward/signal_share",
        "reward/mean": "reward/components/mean",
        "eval_hard/pass_at_4": "eval/hard/pass_at_4",
        "tokens_per_second": "perf/tokens_per_second",
        "engine/running": "perf/engine/running",
        "gpu_memory/training": "perf/gpu_memory/training",
    }.items():
        assert tag_of(name) == tag


def test_a_text_cannot_leave_its_block() -> None:
    sample = replace(sampled(1).samples[0], completion="```\n# Not a heading")
    assert "\n\n    ```\n    # Not a heading" in markdown_of((sample,))


def test_tensorboard_shows_the_repeated_steps_of_a_resumed_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it resumes in the same process, as after the loss of its workers."""
    # Files are read in the order of their names: the second, then this count, of which 10 comes before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))
    first = grpo_run(tmp_path, total=20)[:17]
    again = [with_metrics(grpo_step(step, 20), reward_mean=0.5) for step in range(11, 21)]
    second = [run_started(tmp_path, 20, resumed_from_step=10), *again]
    play(TensorBoardSink(tmp_path / "two"), first)
    play(TensorBoardSink(tmp_path / "two"), second)
    play(TensorBoardSink(tmp_path / "one"), [*first, *second])
    for processes in ("one", "two"):
        rewards = tensorboard_rewards(tmp_path / processes)
        assert sorted(rewards) == list(range(1, 21))
        assert all(rewards[step] == 0.5 for step in range(11, 21))


def test_tensorboard_does_not_mix_two_runs_from_the_start(tmp_path: Path) -> None:
    play(TensorBoardSink(tmp_path), grpo_run(tmp_path, total=20))
    play(TensorBoardSink(tmp_path), grpo_run(tmp_path, total=3))
    assert sorted(tensorboard_rewards(tmp_path)) == [1, 2, 3]


@pytest.mark.slow
def test_a_resumed_job_continues_its_offline_wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    play(WandbSink(WANDB, None, tmp_path), grpo_run(tmp_path, total=5))
    (first,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"mean_abs_logprob_diff" in first.read_bytes()
    play(WandbSink(WANDB, None, tmp_path), [run_started(tmp_path, 5, resumed_from_step=3), grpo_step(4, 5)])
    assert {path.name for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")} == {first.name}


@pytest.mark.slow
def test_wandb_without_a_key_only_causes_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    console = Recorder("console")
    with Progress([], [console, WandbSink(WANDB, None, tmp_path)]) as progress:
        progress.emit(run_started(tmp_path))
    (warning,) = console.of(Warned)
    assert isinstance(warning, Warned)
    assert warning.text.startswith("Weights & Biases (spec.tracking.wandb): No API key")


def test_a_resumed_job_continues_its_mlflow_run_with_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the sink sets it too; this restores it after the test
    spec = MlflowSpec(tracking_uri=f"file:{tmp_path}/mlruns", experiment="tests")
    play(MlflowSink(spec, {}, tmp_path), grpo_run(tmp_path, total=5)[:-3])
    play(
        MlflowSink(spec, {}, tmp_path),
        [run_started(tmp_path, 5, resumed_from_step=4), *grpo_run(tmp_path, total=5)[-3:]],
    )

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=spec.tracking_uri)
    experiment = client.get_experiment_by_name("tests")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name, run.data.params["rank"]) == ("FINISHED", "addition", "16")
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "reward_mean")] == [1, 2, 3, 4, 5]


def test_the_attempts_of_a_job_are_one_mlflow_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ended before its first checkpoint, so the second starts from the beginning."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    spec = MlflowSpec(tracking_uri=f"file:{tmp_path}/mlruns", experiment="tests")
    for pod, uid in (("a", "1-2"), ("b", "1-2"), ("c", "3-4")):
        (tmp_path / pod).mkdir()
        play(MlflowSink(spec, {}, tmp_path / pod, uid), grpo_run(tmp_path / pod, total=2))
    # Without a uid, and with new workers before the first checkpoint.
    play(MlflowSink(spec, {}, tmp_path), [*grpo_run(tmp_path, total=2)[:-1], *grpo_run(tmp_path, total=2)])

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=spec.tracking_uri)
    experiment = client.get_experiment_by_name("tests")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.data.tags.get("lorarl.job_uid", "") for run in runs) == ["", "1-2", "3-4"]


@pytest.mark.slow
def test_the_attempts_of_a_job_are_one_wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for pod in ("a", "b"):
        (tmp_path / pod).mkdir()
        play(WandbSink(WANDB, None, tmp_path / pod, "1-2"), grpo_run(tmp_path / pod, total=2))
    files = tmp_path.glob("*/wandb/offline-run-*/run-*.wandb")
    assert {path.name for path in files} == {"run-1-2.wandb"}


@pytest.mark.parametrize(
    ("package", "distribution", "tracking"),
    [
        ("wandb", "wandb", TrackingSpec(wandb=WANDB)),
        ("mlflow", "mlflow-skinny", TrackingSpec(mlflow=MlflowSpec(tracking_uri="file:x", experiment="e"))),
    ],
)
def test_the_error_for_a_missing_package_names_the_command_that_adds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, distribution: str, tracking: TrackingSpec
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"spec.tracking.{package}: .*lorarl env add {distribution}\."):
        trackers(tracking, {}, tmp_path)


def test_the_error_for_a_missing_key_names_the_secret(tmp_path: Path) -> None:
    tracking = TrackingSpec(wandb=WandbSpec(project="tests", credentials_secret="wandb-key"))
    with pytest.raises(
        InputError,
        match=r"credentialsSecret: got the Secret wandb-key with TOKEN, expected a Secret with WANDB_API_KEY",
    ):
        trackers(tracking, {"wandb-key": {"TOKEN": "x"}}, tmp_path)


@pytest.mark.parametrize(
    ("keys", "fits"),
    [
        ({"MLFLOW_TRACKING_TOKEN": "t"}, True),
        ({"MLFLOW_TRACKING_USERNAME": "u", "MLFLOW_TRACKING_PASSWORD": "p"}, True),
        ({"MLFLOW_TRACKING_USERNAME": "u"}, False),
    ],
)
def test_mlflow_accepts_a_token_or_a_user_with_a_password(tmp_path: Path, keys: dict[str, str], fits: bool) -> None:
    tracking = TrackingSpec(
        mlflow=MlflowSpec(tracking_uri="http://127.0.0.1:9", experiment="e", credentials_secret="mlflow")
    )
    if fits:
        assert len(trackers(tracking, {"mlflow": keys}, tmp_path)) == 2
    else:
        with pytest.raises(
            InputError, match="MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        ):
            trackers(tracking, {"mlflow": keys}, tmp_path)


def test_no_file_contains_the_value_of_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    key = "k" * 40
    tracking = TrackingSpec(wandb=WandbSpec(project="tests", credentials_secret="wandb-key"))
    with open_progress(tmp_path, tracking, {"wandb-key": {"WANDB_API_KEY": key}}, stream=sys.stderr) as progress:
        for event in grpo_run(tmp_path, total=3):
            progress.emit(event)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert not [path for path in files if key.encode() in path.read_bytes()]
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 4
