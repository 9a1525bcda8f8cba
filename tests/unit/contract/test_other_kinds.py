"""A sweep, a schedule or a template where a command takes a job: the hint works when it is followed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from lorarl_api.faults import ManifestError
from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import CLUSTER_TEMPLATE_KIND, TEMPLATE_KIND
from lorarl_trainer.cli import main
from lorarl_trainer.launch.trials import Trials
from unit.contract.manifests import manifest
from unit.contract.schedule_cases import schedule
from unit.contract.sweep_cases import sweep

COMMANDS = [
    "run {}",
    "run {} --dry-run",
    "sweep {} --over spec.trainer.seed=0,1",
    "evaluate s3://team/adapters --job {}",
    "chat s3://team/adapters --job {}",
    "purge {} --yes",
    "serve s3://team/adapters --job {}",
    "merge s3://team/adapters --out merged --job {}",
]


def template(kind: str) -> dict[str, Any]:
    spec = {"cluster": {"image": "platform/trainer:1"}}
    return {"apiVersion": "lorarl.io/v1alpha1", "kind": kind, "metadata": {"name": "pool"}, "spec": spec}


def _template() -> dict[str, Any]:
    return template(TEMPLATE_KIND)


def written(folder: Path, *documents: dict[str, Any]) -> Path:
    file = folder / "my file.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return file


def lorarl(arguments: list[str]) -> Result:
    return CliRunner().invoke(main, arguments)


def hint_of(source: Path) -> str:
    with pytest.raises(ManifestError) as refused:
        load_job(source)
    (fault,) = refused.value.faults
    assert (fault.path, fault.expected) == ("kind", "LoRARLJob")
    return fault.hint


def quoted_in(hint: str) -> list[list[str]]:
    return [shlex.split(one) for one in re.findall(r"`([^`]*)`", hint)]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("document", "said"),
    [
        (schedule(), "lorarl render "),
        (sweep(), "kubectl apply -f "),
        (template(TEMPLATE_KIND), "lorarl render JOB.yaml --template "),
        (template(CLUSTER_TEMPLATE_KIND), "lorarl render JOB.yaml --template "),
    ],
    ids=lambda one: one["kind"] if isinstance(one, dict) else "",
)
def test_every_command_that_takes_a_job_says_what_works(
    document: dict[str, Any], said: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path, document)
    done = lorarl([part.format(file) for part in command.split()])
    assert done.exit_code == 1, done.output
    told = re.sub(r"\s+", " ", done.output)
    assert f"kind: got {document['kind']}, expected LoRARLJob." in told and said in told


def test_the_rendered_job_of_a_schedule_is_taken(tmp_path: Path) -> None:
    file = written(tmp_path, schedule())
    before = file.read_bytes()
    ((_, *arguments, arrow, target),) = quoted_in(hint := hint_of(file))
    assert arrow == ">" and hint.endswith(f"and name {target} here.")
    Path(target).write_text(lorarl(arguments).stdout)
    assert load_job(Path(target)).name.startswith("smallest-") and file.read_bytes() == before


def test_a_sweep_on_one_machine_takes_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, (_, *arguments) = quoted_in(hint_of(written(tmp_path, sweep())))
    assert apply == ["kubectl", "apply", "-f", str(tmp_path / "my file.yaml")]
    (tmp_path / "JOB.yaml").write_text(yaml.safe_dump(manifest({"spec.model.uri": "hf://example/tiny"})))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Trials, "run", lambda self, trials: {})
    over = [one.replace("PATH=VALUES", "spec.trainer.seed=0,1") for one in arguments]
    done = lorarl(over)
    assert done.exit_code == 0 and done.output.startswith("2 trials"), done.output


def test_a_template_completes_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, *arguments),) = quoted_in(hint_of(written(tmp_path, template(TEMPLATE_KIND))))
    (tmp_path / "JOB.yaml").write_text(yaml.safe_dump(manifest()))
    monkeypatch.chdir(tmp_path)
    assert load_job(lorarl(arguments).stdout).spec.cluster.image == "platform/trainer:1"


@pytest.mark.parametrize(("command", "made"), [("render", sweep), ("render", _template), ("validate", _template)])
def test_a_command_that_takes_other_kinds_too_says_the_same(
    command: str, made: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    file = written(tmp_path, made())
    done = lorarl([command, str(file)])
    assert done.exit_code == 1 and hint_of(file) in done.output


def test_two_schedules_are_not_rendered(tmp_path: Path) -> None:
    done = lorarl(["render", str(written(tmp_path, schedule(), schedule()))])
    assert done.exit_code == 1 and "got 2 LoRARLSchedule objects, expected one. Put each schedule into" in done.output


def test_a_job_beside_others_is_taken(tmp_path: Path) -> None:
    assert load_job(written(tmp_path, schedule(), sweep(), manifest())).name == "smallest"
