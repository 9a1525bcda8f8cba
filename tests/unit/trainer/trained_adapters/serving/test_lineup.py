"""Which checkpoints of a job's folder are served as it changes, and which names mean them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lorarl_trainer.checkpoint.contents import ADAPTER_MODEL
from lorarl_trainer.checkpoint.latest import Best, Latest
from lorarl_trainer.errors import InputError
from lorarl_trainer.storage import LocalStore
from lorarl_trainer.trained_adapters.serving.check import NotServedError
from lorarl_trainer.trained_adapters.serving.lineup import Lineup, names_file
from lorarl_trainer.trained_adapters.serving.versions import NotWholeError, Version, fetch, wanted
from support.checkpoints import JOB, checkpoint, checkpoints

FOLDERS = ("iter_0000010", "iter_0000020", "iter_0000030")
BEST = Best("iter_0000010", 10, "eval_score", 0.5)


def latest(best: Best | None = None) -> Latest:
    return Latest(1, "", "", "", path=FOLDERS[-1], checkpoints=FOLDERS, best=best)


@pytest.mark.parametrize(
    ("choice", "best", "most", "steps"),
    [
        (None, None, 2, [30, 20]),
        (None, BEST, 2, [10, 30]),
        ("newest", BEST, 9, [30, 20, 10]),
        ("best", BEST, 1, [10]),
        (20, BEST, 9, [20]),
    ],
)
def test_the_runs_name_means_the_best_or_newest_or_a_step(
    choice: str | int | None, best: Best | None, most: int, steps: list[int]
) -> None:
    found = wanted(latest(best), choice, most)
    assert found is not None
    assert [int(folder.removeprefix("iter_")) for folder in found.folders] == steps
    assert found.main == found.folders[0]


@pytest.mark.parametrize(("choice", "said"), [(25, "There are 10, 20, 30"), ("best", "Leave --checkpoint out")])
def test_a_checkpoint_that_is_not_there_is_refused(choice: str | int, said: str) -> None:
    with pytest.raises(InputError, match=f"--checkpoint: .*{said}"):
        wanted(latest(), choice, 4)


def test_nothing_is_wanted_before_the_first_checkpoint() -> None:
    assert wanted(Latest(1, "", "", ""), None, 4) is None


class Service:
    """A lineup over a folder of checkpoints that changes, and a server that refuses the steps in `wrong`."""

    def __init__(self, tmp_path: Path, keep: int = 9) -> None:
        self.run = checkpoints(LocalStore(tmp_path / "store"), keep=keep)
        self.run.start("Auto")
        self.home = LocalStore(tmp_path / "store" / JOB)
        self.folder = tmp_path / "service"
        self.folder.mkdir()
        self.loaded: dict[str, Path] = {}
        self.wrong: set[int | None] = set()
        self.said: list[tuple[str, str]] = []
        self.lineup = Lineup(
            "sums", self.folder, self.join, self.leave, lambda word, line: self.said.append((word, line))
        )

    def join(self, version: Version, name: str) -> str:
        assert name not in self.loaded and name not in json.loads(names_file(self.folder).read_text()).values()
        if version.step in self.wrong:
            raise NotServedError("it changes nothing")
        self.loaded[name] = version.folder
        return "right"

    def leave(self, name: str) -> None:
        assert name not in json.loads(names_file(self.folder).read_text()).values(), "requests could still ask for it"
        del self.loaded[name]

    def follow(self, most: int = 2) -> dict[str, str]:
        """Look once, and return the step that each name means. Whatever has a name is loaded, with its files."""
        self.lineup.follow(self.home, None, most)
        means: dict[str, str] = json.loads(names_file(self.folder).read_text())
        assert all((self.loaded[name] / "adapter_model.safetensors").is_file() for name in means.values())
        return {name: loaded.partition("@")[0].removeprefix("sums-step-") for name, loaded in means.items()}


def test_further_checkpoints_are_followed_and_earlier_ones_leave(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.run.publish(checkpoint(10))
    assert service.follow() == {"sums": "10", "sums-step-10": "10"}
    for step in range(20, 90, 10):
        service.run.publish(checkpoint(step))
        assert service.follow() == {
            "sums": f"{step}",
            f"sums-step-{step - 10}": f"{step - 10}",
            f"sums-step-{step}": f"{step}",
        }
        assert len(service.loaded) <= 4, "two are served, one is checked, and one leaves"
    service.follow()
    assert len(service.loaded) == 2
    assert len(list((service.folder / "adapters").glob("*/lora_adapter"))) <= 4, "files of those that left long ago go"


def test_a_wrong_checkpoint_leaves_the_name_where_it_was(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.run.publish(checkpoint(10))
    service.follow()
    service.wrong = {20, 30, 40}
    for step in (20, 30, 40):
        service.run.publish(checkpoint(step))
        assert service.follow()["sums"] == "10"
    refused = [line for word, line in service.said if word == "refused"]
    assert refused == [f"sums-step-{step} is not served: it changes nothing" for step in (20, 30, 40)], "each once"
    service.run.publish(checkpoint(50))
    assert service.follow() == {"sums": "50", "sums-step-50": "50"}


def test_another_adapter_of_the_same_step_has_another_name(tmp_path: Path) -> None:
    """A prefix cache knows adapters by their names."""
    names = []
    for writer in ("one", "other"):
        service = Service(tmp_path / writer)
        service.run.publish(checkpoint(10, writer))
        service.follow()
        names += service.loaded
    assert len(set(names)) == 2 and all(name.startswith("sums-step-10@") for name in names)


def test_half_a_checkpoint_is_not_served(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.run.publish(checkpoint(10))
    service.run.publish(checkpoint(20))
    weights = tmp_path / "store" / JOB / FOLDERS[1] / ADAPTER_MODEL
    weights.write_bytes(weights.read_bytes()[:-1])
    assert service.follow() == {"sums-step-10": "10"}, "which is whole"
    assert service.lineup.main is None and "adapter_model.safetensors has" in service.lineup.reasons
    (tmp_path / "store" / JOB / FOLDERS[1] / "checkpoint.json").unlink()
    with pytest.raises(NotWholeError, match="is missing or broken"):
        fetch(service.home, FOLDERS[1], tmp_path)


def test_a_checkpoint_that_the_run_deletes_meanwhile_is_no_fault(tmp_path: Path) -> None:
    service = Service(tmp_path, keep=1)
    service.run.publish(checkpoint(10))

    class Deleted(LocalStore):
        """The run publishes the next checkpoint, and deletes this one, while it is being read."""

        def get_large(self, path: str) -> bytes | None:
            if path.startswith(f"{FOLDERS[0]}/lora_adapter/"):
                service.run.publish(checkpoint(20))
            return super().get_large(path)

    service.home = Deleted(tmp_path / "store" / JOB)
    assert service.follow() == {} and not service.said
    assert service.follow() == {"sums": "20", "sums-step-20": "20"}
