"""An environment in pods, with real processes of environments, and actors that are in this process in place of Ray's.

`tests/run/test_environment_nodes.py` has Ray's own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.errors import EnvironmentsLostError, InputError
from lorarl_trainer.launch import environment_pods
from lorarl_trainer.launch.environment_actor import EnvironmentActor, PackedCode, Place
from lorarl_trainer.launch.environment_pods import PodEnvironment
from lorarl_trainer.pods.drain import RUN_DIR
from lorarl_trainer.rewards.environment.environment import Environment
from lorarl_trainer.rewards.environment.playing import Answer, EpisodeFailedError, OpenEpisode
from lorarl_trainer.rewards.process import CodeFolders
from unit.trainer.launch.pods_here import GAME, SECONDS, Actor, Pods, in_pods, played, ready, row


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    made = Pods()
    (tmp_path / "code").mkdir()
    (tmp_path / "code/game.py").write_text(GAME)
    (tmp_path / "rows").mkdir()

    def new_actor(self: PodEnvironment) -> Actor:
        assert self._packed is not None
        made.actors.append(Actor(EnvironmentActor(self._spec, self._packed)))
        if len(made.actors) > made.free:
            made.actors[-1].die()
        return made.actors[-1]

    async def place(_: EnvironmentActor) -> Place:
        return Place("pod", "machine", environment_pods.installed_version("lorarl"))

    async def never(_: frozenset[str]) -> Exception:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setenv(RUN_DIR, str(tmp_path / "run"))
    monkeypatch.setattr(PodEnvironment, "_new_actor", new_actor)
    monkeypatch.setattr(EnvironmentActor, "place", place)
    monkeypatch.setattr(environment_pods, "loss_of", never)
    monkeypatch.setattr(environment_pods, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(ray, "kill", lambda actor: actor.die())
    yield made
    for actor in made.actors:
        actor.actor._environment.close()


def test_they_say_what_one_here_says(tmp_path: Path, pods: Pods) -> None:
    environment, told = in_pods(tmp_path, 2, function="game:Dice")

    async def there() -> list[Any]:
        async with ready(environment):
            for number in range(2):
                await pods.of("ended", number)
            return await asyncio.gather(*(played(environment, row(tmp_path), seed) for seed in range(4)))

    async def here() -> list[Any]:
        local = Environment(EnvironmentSpec(function="game:Dice"), CodeFolders((str(tmp_path / "code"),)))
        try:
            return [await played(local, row(tmp_path), seed) for seed in range(4)]
        finally:
            local.close()

    found = asyncio.run(there())
    assert found == asyncio.run(here())
    assert isinstance(found[0][-1], Answer) and len({str(each) for each in found}) == 4
    assert [actor.calls.count("begin") for actor in pods.actors] == [2, 2], "each pod has its share"
    assert told == []


def test_what_is_lost_with_its_pod_is_played_again_and_goes_on(tmp_path: Path, pods: Pods) -> None:
    environment, told = in_pods(tmp_path, 2, function="game:Dice")

    async def play() -> tuple[list[Any], list[Any]]:
        async with ready(environment):
            undisturbed = await played(environment, row(tmp_path), 7)

            def lose() -> None:
                next(actor for actor in pods.actors if actor.actor._episodes).die()

            return undisturbed, await played(environment, row(tmp_path), 7, lose)

    undisturbed, lost = asyncio.run(play())
    assert lost == undisturbed
    assert len(list((tmp_path / "rows").iterdir())) == 3, "once undisturbed, and once in each of two pods"
    assert [text for text in told if "pod pod is lost" in text and "ActorDiedError" in text] == told != []


def test_an_environment_that_answers_otherwise_then_fails(tmp_path: Path, pods: Pods) -> None:
    environment, _ = in_pods(tmp_path, function="game:Clock")

    async def play() -> None:
        async with ready(environment):
            await played(environment, row(tmp_path), 0, lambda: pods.actors[0].die())

    with pytest.raises(EpisodeFailedError, match="step answers otherwise when it is played again") as failed:
        asyncio.run(play())
    assert failed.value.cause == "crash"


def test_an_episode_that_loses_all_its_pods_fails_alone(tmp_path: Path, pods: Pods) -> None:
    environment, told = in_pods(tmp_path, function="game:Dice")

    async def play() -> list[Any]:
        async with ready(environment):
            async with environment.episode(0) as episode:
                await episode.reset(row(tmp_path))
                with pytest.raises(EpisodeFailedError, match="3 pods were lost while they played it") as failed:
                    for _ in range(3):
                        pods.actors[-1].die()
                        await episode.step("go")
            assert failed.value.cause == "crash"
            return await played(environment, row(tmp_path), 0)

    assert len(asyncio.run(play())) == 4, "the next one is played"
    assert len(told) == 3


def test_a_process_that_ends_by_itself_is_no_loss(tmp_path: Path, pods: Pods) -> None:
    environment, told = in_pods(tmp_path, function="game:Falls")

    async def play() -> None:
        async with ready(environment), environment.episode(0) as episode:
            await episode.reset(row(tmp_path))
            await episode.step("go")

    with pytest.raises(EpisodeFailedError, match="the process exited with code 3 in step"):
        asyncio.run(play())
    assert len(pods.actors) == 1 and told == []


def test_tools_are_called_there(tmp_path: Path, pods: Pods) -> None:
    environment, _ = in_pods(tmp_path, tools=["game:add"])

    async def play() -> tuple[Any, OpenEpisode]:
        async with ready(environment):
            assert [tool["function"]["name"] for tool in environment.tools] == ["add"]
            async with environment.episode(0) as episode:
                return await episode.call("add", {"first": 2, "second": 3}), episode

    result, episode = asyncio.run(play())
    assert (result.text, result.fault) == ("5", "") and episode.seconds > 0.0


class TestAgents:
    def test_an_agents_clock_stands_still_while_the_model_writes(self, tmp_path: Path, pods: Pods) -> None:
        environment, _ = in_pods(tmp_path, agent="game:play", timeout_seconds=1.0)

        async def play(*, stops: bool) -> Answer:
            takes = {"sleeps": 2.0 if stops else 600.0}
            async with ready(environment), environment.episode(0) as episode:
                call = asyncio.create_task(episode.play(takes, "http://127.0.0.1:9/v1", "key", "model"))
                while "answer" not in pods.actors[-1].calls:
                    await asyncio.sleep(0)
                with episode.waits_for_the_model() if stops else contextlib.nullcontext():
                    await asyncio.wait([call])
                return call.result()

        assert asyncio.run(play(stops=True)).reward == 0.5
        with pytest.raises(EpisodeFailedError, match="took more than 1 s"):
            asyncio.run(play(stops=False))

    def test_no_proxy_is_between_it_and_the_heads_address(
        self, tmp_path: Path, pods: Pods, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        environment, _ = in_pods(tmp_path, agent="game:reaches")

        async def play() -> Answer:
            async with ready(environment), environment.episode(0) as episode:
                return await episode.play({}, "http://10.1.2.3:8000/v1", "key", "model")

        assert asyncio.run(play()).reward == 1.0

    def test_one_that_is_lost_is_counted_and_not_played_again(self, tmp_path: Path, pods: Pods) -> None:
        environment, _ = in_pods(tmp_path, agent="game:play")

        async def play() -> None:
            async with ready(environment), environment.episode(0) as episode:
                call = asyncio.create_task(episode.play({"sleeps": 600.0}, "http://127.0.0.1:9/v1", "key", "model"))
                (await pods.of("answer", 0)).die()
                await call

        with pytest.raises(EpisodeFailedError, match="was lost while the agent played") as failed:
            asyncio.run(play())
        assert failed.value.cause == "crash"


class TestFailures:
    def test_code_that_cannot_be_used_is_refused_as_it_is_here(self, tmp_path: Path, pods: Pods) -> None:
        environment, _ = in_pods(tmp_path, function="game:Missing")

        async def start() -> None:
            async with ready(environment):
                pass

        with pytest.raises(InputError, match=r"spec.environment.function: .*has no such class"):
            asyncio.run(start())

    def test_an_image_of_another_lorarl_is_refused(
        self, tmp_path: Path, pods: Pods, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def place(_: EnvironmentActor) -> Place:
            return Place("pod", "machine", "0.0.1")

        monkeypatch.setattr(EnvironmentActor, "place", place)
        environment, _ = in_pods(tmp_path, function="game:Dice")

        async def start() -> None:
            async with ready(environment):
                pass

        with pytest.raises(InputError, match=r"spec.cluster.environments.image: got an image with lorarl 0.0.1"):
            asyncio.run(start())

    def test_actors_that_end_before_they_are_ready_end_the_run(self, tmp_path: Path, pods: Pods) -> None:
        pods.free = 0
        environment, _ = in_pods(tmp_path, function="game:Dice")

        async def start() -> None:
            async with ready(environment):
                pass

        with pytest.raises(EnvironmentsLostError, match="its actor ended 5 times before it was ready"):
            asyncio.run(start())

    def test_a_run_without_pods_ends_after_its_patience(
        self, tmp_path: Path, pods: Pods, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environment, _ = in_pods(tmp_path, function="game:Dice")

        async def lose_all() -> None:
            async with ready(environment):
                monkeypatch.setattr(environment_pods, "PATIENCE_SECONDS", 0.2)
                monkeypatch.setattr(environment_pods, "_PAUSE_SECONDS", 600.0)
                await played(environment, row(tmp_path), 0, lambda: pods.actors[0].die())

        with pytest.raises(EnvironmentsLostError, match=r"no pod has been there for 0\.2 s") as lost:
            asyncio.run(lose_all())
        assert lost.value.reason == "NodeLost"

    def test_the_loss_of_a_machine_is_one_also_if_ray_leaves_a_call_unanswered(
        self, tmp_path: Path, pods: Pods, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lost = asyncio.Event()

        async def loss_of(machines: frozenset[str]) -> Exception:
            assert machines == {"machine"}
            await lost.wait()
            lost.clear()
            return RuntimeError("Ray's node has died")

        monkeypatch.setattr(environment_pods, "loss_of", loss_of)
        environment, told = in_pods(tmp_path, function="game:Dice")

        async def play() -> list[Any]:
            async with ready(environment):
                return await played(environment, row(tmp_path), 0, lost.set)

        assert len(asyncio.run(play())) == 4
        assert told and "Ray's node has died" in told[0]


def test_an_episode_that_is_given_up_while_it_begins_leaves_nothing(tmp_path: Path, pods: Pods) -> None:
    environment, _ = in_pods(tmp_path, function="game:Dice")

    async def play() -> None:
        async with ready(environment):
            begins = asyncio.create_task(played(environment, row(tmp_path), 0))
            actor = await pods.of("begin", 0)
            begins.cancel()
            await asyncio.gather(begins, return_exceptions=True)
            await pods.of("end", 0)
            await asyncio.wait({task for task in actor.tasks if not task.done()}, timeout=0.1)
            async with asyncio.timeout(SECONDS):
                while actor.actor._episodes:
                    await asyncio.sleep(0.01)

    asyncio.run(play())


def test_nothing_is_left_at_the_end(tmp_path: Path, pods: Pods) -> None:
    environment, _ = in_pods(tmp_path, 2, function="game:Dice")
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    async def play() -> None:
        async with ready(environment):
            await played(environment, row(tmp_path), 0)

    asyncio.run(play())
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert psutil.wait_procs(left, timeout=SECONDS)[1] == []


class TestCode:
    def test_a_source_is_brought_whole(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        (source / "package").mkdir(parents=True)
        (source / "package/game.py").write_text("A = 1")
        (source / "table.bin").write_bytes(b"\x00\xff")
        packed = PackedCode.of(CodeFolders((str(source),), "s3://code"))
        code = packed.unpacked(tmp_path / "run")
        [folder] = code.folders
        assert code.source == "s3://code"
        assert (Path(folder) / "package/game.py").read_text() == "A = 1"
        assert (Path(folder) / "table.bin").read_bytes() == b"\x00\xff"
        assert packed.unpacked(tmp_path / "run").folders != code.folders, "another actor in the pod has another copy"

    def test_the_users_own_folders_are_the_images(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "here").mkdir()
        (tmp_path / "here/game.py").write_text("A = 1")
        packed = PackedCode.of(CodeFolders((str(tmp_path / "here"),)))
        assert packed.files == {}
        monkeypatch.chdir(tmp_path)
        assert packed.unpacked(tmp_path / "run") == CodeFolders((str(tmp_path),))
