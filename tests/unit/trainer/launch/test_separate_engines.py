"""Engines of a run: whose GPUs are whose, how each is started, and what follows when one ends. Real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices import nvidia_smi
from lorarl_trainer.errors import EnginesLostError, InputError, LorarlError, RolloutServerError
from lorarl_trainer.launch import engine_command as commands
from lorarl_trainer.launch import separate_engines
from lorarl_trainer.launch.engine_command import GpuShares, engine_command, engine_environment, share_gpus
from lorarl_trainer.launch.engine_places import PlaceLostError
from lorarl_trainer.launch.local import require_places_of_engines
from lorarl_trainer.launch.separate_engines import RESTARTS, SeparateEngines
from lorarl_trainer.servers.faults import UnreachableError
from support.cluster.processes import until
from unit.contract.manifests import manifest
from unit.trainer.planning.jobs import cpu_job, gpu_job

ANSWERS = """
import http.server, pathlib, subprocess, sys
core = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[2]).open("a").write(f"{core.pid}\\n")
class Models(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"data": []}')
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Models).serve_forever()
"""
"""A server with a process beside it, as vLLM's has one for its core."""
ENDS = "raise ValueError('no room')"


def engines_of(
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warnings: list[str],
    count: int = 1,
    *,
    answered: bool = False,
) -> SeparateEngines:
    """Engines that run this program. `answered`: as if each had answered before."""

    def command(_: LoRARLJobSpec, model: Path, port: int, *, with_images: bool) -> list[str]:
        assert not with_images
        return [sys.executable, "-c", program, str(port), str(model / "cores")]

    monkeypatch.setattr(commands, "engine_command", command)
    spec = gpu_job(f"rollout.separateEngines.count={count}")
    engines = SeparateEngines.here(spec, [["0"]] * count, tmp_path / "logs", warnings.append)
    (tmp_path / "config.json").write_text("{}")
    engines.start(tmp_path)
    for engine in engines._engines:
        engine.answered = answered
    return engines


async def reached(what: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_one_that_is_killed_is_started_again_without_what_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    failures: list[RolloutServerError] = []

    def cores() -> list[int]:
        return list(map(int, (tmp_path / "cores").read_text().split()))

    async def whole() -> None:
        engines = engines_of(ANSWERS, tmp_path, monkeypatch, warnings, count=2)
        try:
            await engines.ready(failures.append, "")
            assert len(cores()) == 2
            os.kill(psutil.Process(cores()[0]).ppid(), signal.SIGKILL)
            await reached(lambda: len(cores()) == 3)
            await reached(lambda: not alive(cores()[0]))
            assert alive(cores()[1])
        finally:
            await engines.end()

    asyncio.run(whole())
    [told] = warnings
    assert "was ended by SIGKILL" in told and "for the 1st time in this run" in told
    assert failures == []
    until(20.0, "all cores have ended", lambda: not any(map(alive, cores())))
    assert len(list((tmp_path / "logs").iterdir())) == 3


def test_one_that_keeps_ending_is_given_up_and_without_any_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    failures: list[RolloutServerError] = []

    async def whole() -> None:
        engines = engines_of(ENDS, tmp_path, monkeypatch, warnings, answered=True)
        try:
            await engines.ready(failures.append, "")
            await reached(lambda: failures)
        finally:
            await engines.end()

    asyncio.run(whole())
    assert len(warnings) == RESTARTS + 1 and "is given up" in warnings[-1] and "ValueError: no room" in warnings[-1]
    [failure] = failures
    assert "spec.rollout.separateEngines: no engine is left" in str(failure)


def test_one_whose_log_cannot_be_written_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that fails ends neither the watch over the engine nor the run."""
    warnings: list[str] = []

    async def whole() -> None:
        engines = engines_of(ENDS, tmp_path, monkeypatch, warnings, answered=True)
        (tmp_path / "logs/engine-0-restart-1.log").mkdir(parents=True)  # no file can be opened there
        try:
            await reached(lambda: len(warnings) > 2)
        finally:
            await engines.end()

    asyncio.run(whole())
    assert "ended with code 1" in warnings[0] and "ended with code 1" in warnings[2]
    assert "cannot be started ([Errno 21] Is a directory" in warnings[1] and "for the 2nd time" in warnings[1]


def test_one_that_ends_before_it_answers_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        engines = engines_of(ENDS, tmp_path, monkeypatch, [])
        try:
            await engines.ready(lambda _: None, "")
        finally:
            await engines.end()

    with pytest.raises(RolloutServerError, match="engine 0 ended with code 1; it said: ValueError: no room"):
        asyncio.run(whole())


KILLED = """
import asyncio, sys, time
from pathlib import Path
from unit.trainer.launch import test_separate_engines as tests
class Patch:
    def setattr(self, module, name, value): setattr(module, name, value)
async def whole():
    engines = tests.engines_of(tests.ANSWERS, Path(sys.argv[1]), Patch(), [])
    await engines.ready(lambda _: None, "")
    print("ready", flush=True)
    time.sleep(600)
asyncio.run(whole())
"""


class Pods:
    """A place whose pods come and go as a list says, one start after the other.

    `lost`: the pod goes as soon as the engine has started. `none`: no pod comes. `ends`: the engine ends
    by itself. `runs`: it answers, until `lose` is set.
    """

    where = "pod a"

    def __init__(self, *starts: str, number: int = 0, fingerprint: str | None = None) -> None:
        self.url, self.left, self.begun = f"engine-{number}", list(starts), 0
        self.fingerprint, self.now, self.is_found = fingerprint, "", False
        self.lose = asyncio.Event()

    def reach(self, session: object) -> Pods:
        return self

    async def ask(self, method: str, path: str, body: object, seconds: float) -> tuple[int, str]:
        if self.now != "runs":
            raise UnreachableError("no pod")
        return 200, '{"data": []}'

    async def start(self, model: Path | None, log: str) -> str | None:
        start = self.left.pop(0)
        if start == "none":
            await asyncio.Event().wait()
        self.begun, self.now, self.is_found = self.begun + 1, start, True
        return self.fingerprint

    async def ended(self) -> str:
        if self.now == "ends":
            return "ended with code 1"
        if self.now == "runs":
            await self.lose.wait()
            self.lose.clear()
        self.now, self.is_found = "", False
        raise PlaceLostError("its node has died")

    async def end(self) -> None:
        self.now, self.is_found = "", False


@asynccontextmanager
async def in_pods(
    *places: Pods, warnings: list[str], seconds: float = 600.0, started: bool = True
) -> AsyncIterator[SeparateEngines]:
    """Engines in these places, which end with the block."""
    spec = cpu_job(f"rollout.separateEngines.count={len(places)}", f"rollout.serverTimeoutSeconds={seconds}")
    engines = SeparateEngines(spec, places, "key", "Look there.", warnings.append, in_pods=True)
    if started:
        engines.start(None)
    try:
        yield engines
    finally:
        await engines.end()


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run with quick looks for another place warns of."""
    monkeypatch.setattr(separate_engines, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(separate_engines, "ROUND_SECONDS", 0.01)
    return []


def test_a_lost_place_is_no_end(warnings: list[str]) -> None:
    place = Pods("lost", "lost", "runs")

    async def whole() -> None:
        async with in_pods(place, warnings=warnings) as engines:
            await engines.ready(lambda _: None, "")

    asyncio.run(whole())
    assert place.begun == 3
    assert warnings == [warnings[0]] * 2 and "lost its pod a (its node has died). It starts in" in warnings[0]


def test_a_place_that_is_lost_again_and_again_is_one(warnings: list[str]) -> None:
    async def whole() -> None:
        async with in_pods(Pods(*["lost"] * RESTARTS), warnings=warnings) as engines:
            await engines.ready(lambda _: None, "")

    with pytest.raises(EnginesLostError, match="lost its pod a, the 5th one before it answered"):
        asyncio.run(whole())


def test_the_training_begins_without_an_engine_that_gets_no_pod(warnings: list[str]) -> None:
    """That one may then be lost as often as it is: it joins whenever it answers."""
    there, absent = Pods("runs"), Pods("none", *["lost"] * RESTARTS, "runs", number=1)
    failures: list[RolloutServerError] = []

    async def whole() -> None:
        async with in_pods(there, absent, warnings=warnings, seconds=2.0) as engines:
            await engines.ready(failures.append, "")
            assert "the training begins without engine 1, which has not answered within" in warnings[0]
            await engines.ready(failures.append, "")  # as new workers do
            waiting = engines._engines[1]
            assert waiting.life is not None
            waiting.life.cancel()
            waiting.life = asyncio.create_task(engines._run(waiting, None))
            await reached(lambda: waiting.answered)

    asyncio.run(whole())
    assert failures == [] and len(warnings) == 1 + RESTARTS


def test_without_any_pod_the_start_ends_as_a_loss(warnings: list[str]) -> None:
    async def whole() -> None:
        async with in_pods(Pods("lost", "none"), Pods("none", number=1), warnings=warnings, seconds=2.0) as engines:
            await engines.ready(lambda _: None, "")

    with pytest.raises(EnginesLostError, match=r"no engine has had a pod for rollout.serverTimeoutSeconds, 2 s"):
        asyncio.run(whole())


def test_all_are_lost_until_one_answers_again(warnings: list[str]) -> None:
    """An engine that has started in another pod, and has not answered there, is still one that was lost."""
    first, second = Pods("runs", "lost", "lost", "none"), Pods("runs", *["ends"] * (RESTARTS + 1), number=1)

    async def whole() -> None:
        async with in_pods(first, second, warnings=warnings) as engines:
            await engines.ready(lambda _: None, "")
            are_lost = engines.origin.are_lost
            assert not are_lost()
            first.lose.set()
            await reached(lambda: first.begun == 3 and not first.left)
            assert not are_lost(), "the other one is there"
            second.lose.set()
            await reached(lambda: "is given up" in "".join(warnings))
            assert are_lost(), "one that is given up is not what is missing"

    asyncio.run(whole())


def test_nothing_starts_after_the_end(warnings: list[str]) -> None:
    """As when the checks of a run fail while its engines wait for Ray."""
    place = Pods("runs")

    async def whole() -> None:
        async with in_pods(place, warnings=warnings, started=False) as engines:
            pass
        engines.start(None)
        await asyncio.sleep(0)
        assert [engine.life for engine in engines._engines] == [None]

    asyncio.run(whole())
    assert place.begun == 0


def test_another_base_model_than_the_workers_have_is_refused(warnings: list[str]) -> None:
    async def whole(*, later: bool) -> None:
        place = Pods("runs", *["lost"] * later, *["runs"] * later * 8, fingerprint="the-same")
        async with in_pods(place, warnings=warnings) as engines:
            await reached(lambda: engines._engines[0].answered)
            await engines.ready(lambda _: None, "the-same" if later else "another")
            place.fingerprint = "another"
            place.lose.set()
            await reached(lambda: "is given up" in "".join(warnings))

    with pytest.raises(LorarlError, match=r"spec.model.uri: .* changed while the machines fetched it"):
        asyncio.run(whole(later=False))
    asyncio.run(whole(later=True))
    assert "cannot be started (spec.model.uri: " in warnings[-1]


def test_none_outlives_a_driver_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
    core = int((tmp_path / "cores").read_text())
    server = psutil.Process(core).ppid()
    driver.kill()
    driver.wait()
    until(20.0, "server and core have ended", lambda: not alive(server) and not alive(core))


def test_the_first_gpus_are_the_trainers() -> None:
    engines = ("rollout.separateEngines.count=2", "rollout.separateEngines.tensorParallelSize=2")
    shares = share_gpus(gpu_job(*engines, gpus=3), ["0", "2", "4", "5", "6", "7", "8"])
    assert shares == GpuShares(("0", "2", "4"), (("5", "6"), ("7", "8")))
    with pytest.raises(InputError, match=r"2 x 2 GPU\(s\) for engines beside 3 for the trainer, expected at most 6"):
        share_gpus(gpu_job(*engines, gpus=3), list("012345"))
    assert share_gpus(cpu_job("rollout.separateEngines.count=2"), []) == GpuShares((), ((), ()))


def test_a_machine_with_too_few_gpus_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    job = load_job(str(manifest({"spec.rollout.separateEngines": {}, "spec.cluster.gpusPerNode": 2})))
    monkeypatch.setattr(nvidia_smi, "gpu_count", lambda: 0)
    require_places_of_engines(job)  # as in a dry run on a laptop
    monkeypatch.setattr(nvidia_smi, "gpu_count", lambda: 3)
    require_places_of_engines(job)
    monkeypatch.setattr(nvidia_smi, "gpu_count", lambda: 2)
    with pytest.raises(InputError, match="at most 2 in all"):
        require_places_of_engines(job)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(InputError, match="workers at RAY_ADDRESS"):
        require_places_of_engines(job)


def test_an_engine_computes_as_the_trainer_and_its_command_has_no_key() -> None:
    ahead = ("rollout.maxStaleness=1", "algorithm.correction={preset: decoupled_token_is}")
    gpu = gpu_job("rollout.separateEngines.gpuMemoryFraction=0.8", *ahead)
    command = engine_command(gpu, Path("/base"), 20_001, with_images=False)
    options = dict(pairwise(command))
    assert options["--model"] == "/base" and options["--dtype"] == "bfloat16" and options["--port"] == "20001"
    assert options["--max-loras"] == "2" and options["--max-lora-rank"] == "32"
    assert options["--max-model-len"] == "320" and options["--logprobs-mode"] == "processed_logprobs"
    assert options["--gpu-memory-utilization"] == "0.8" and "--enforce-eager" not in command
    variables = engine_environment(gpu, ["4", "5"], "a-key", 0)
    assert variables["CUDA_VISIBLE_DEVICES"] == "4,5" and variables["VLLM_API_KEY"] == "a-key"
    assert "a-key" not in command

    cpu = cpu_job("rollout.separateEngines.count=1")
    command = engine_command(cpu, Path("/base"), 20_001, with_images=True)
    assert "--language-model-only" in command
    assert {"float32", "--enforce-eager", "--no-enable-chunked-prefill"} <= set(command)
    variables = engine_environment(cpu, [], "a-key", 3)
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "3" and variables["CUDA_VISIBLE_DEVICES"] == ""
