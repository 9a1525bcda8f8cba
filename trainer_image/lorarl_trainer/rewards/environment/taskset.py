"""The program of a taskset of verifiers: it imports verifiers once, and each episode is a task in a fork of itself.

It runs as `agent.py` beside it does, but with the Python of verifiers' own environment, which lacks lorarl's packages:
verifiers needs another openai than vLLM does. Of lorarl, it imports what needs the standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import platform
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

_OWN_PATH = list(sys.path)
sys.path.append(str(Path(__file__).resolve().parents[3]))  # behind all of verifiers' packages, and only for this

from lorarl_trainer.install.separate import SEPARATE, variable_of  # noqa: E402
from lorarl_trainer.rewards.environment.agent import Agent, Llm  # noqa: E402
from lorarl_trainer.rewards.environment.worker import WRONG_TYPE, main  # noqa: E402
from lorarl_trainer.rewards.worker import FailedError, RefusedError, logged  # noqa: E402

sys.path[:] = _OWN_PATH

SERIES = "0.4"
"""Of verifiers: its names below are those of this series."""
_PACKAGE = "verifiers"
_INSTALL = f"lorarl env add {SEPARATE[_PACKAGE]}"
_PROGRAM = "chat"
"""Stands for the program of the null harness in the command with which verifiers starts it."""
_FIRST_CALL = ("openai.resources", "anyio._backends._asyncio", "mcp.client.streamable_http")
"""What a first call of the model or a tool imports: half a second in each episode otherwise."""
_NULL = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}


class Taskset:
    """A taskset that this process has imported, with its tasks.

    Attributes:
        size: number of tasks; None if there is no end of them.
    """

    def __init__(self, name: str, places: Sequence[str]) -> None:
        """Load a taskset by the name that verifiers has for it. `places`: folders where the user's may be.

        Raises:
            RefusedError: there is none, or it cannot be played here.
        """
        from verifiers.v1.utils.loaders import (  # type: ignore[import-not-found, unused-ignore]
            load_environment,
            resolve_env_config,
        )

        self._name = name
        _require_playable(name, places)
        try:
            self._environment = load_environment(resolve_env_config({"taskset": {"id": name}, "agent": _NULL}))
            taskset = self._environment.taskset
            self._tasks = list(self._numbered()) if taskset.bounded else None
        except Exception as error:
            got = f"{name}, whose tasks cannot be loaded ({logged(error, __file__)})"
            raise RefusedError(got, "Fix the taskset, or choose one whose options have defaults.") from error
        if self._tasks == []:
            raise RefusedError(f"{name}, which has no tasks", "Choose a taskset with tasks.")
        self._require_no_container()
        self.size = None if self._tasks is None else len(self._tasks)

    async def play(self, row: Mapping[str, Any], llm: Llm) -> dict[str, float]:
        """Play the task with the number of the row's seed; return its reward and metrics.

        Raises:
            FailedError: there is no such task, or verifiers reports an error or no reward.
        """
        from verifiers.v1.clients import ModelContext  # type: ignore[import-not-found, unused-ignore]
        from verifiers.v1.configs.client import EvalClientConfig  # type: ignore[import-not-found, unused-ignore]
        from verifiers.v1.types import SamplingConfig  # type: ignore[import-not-found, unused-ignore]

        task = self._task(row.get("seed"))
        client = EvalClientConfig(base_url=llm.base_url, api_key_var="OPENAI_API_KEY")
        context = ModelContext(client=client, model=llm.model, sampling=SamplingConfig())
        async with self._environment.serving():
            episode = await self._environment.run_episode(task, context)
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors or not episode.ok:
            said = "; ".join(f"{error.type}: {error.message}" for error in errors) or "the episode is not ok"
            raise FailedError("exception", f"{self._name}: {said[-400:]}")
        (trace,) = episode.traces
        unscored = [name for name, reward in trace.rewards.items() if reward is None]
        if unscored or not trace.rewards:
            which = f"its {', '.join(unscored)} returned nothing" if unscored else "it defines none"
            raise FailedError(WRONG_TYPE, f"{self._name}: a task without a reward: {which}")
        found = {name: value for name, value in trace.metrics.items() if isinstance(value, int | float)}
        return {**found, "reward": trace.reward}

    def _task(self, number: Any) -> Any:
        if not isinstance(number, int) or number < 0:
            raise FailedError("exception", f"{self._name}: the row has no seed, which is the number of its task")
        if self._tasks is not None:
            if number >= len(self._tasks):
                got = f"{self._name} has no task {number}: the last one is {len(self._tasks) - 1}"
                raise FailedError("exception", got)
            return self._tasks[number]
        task = next(itertools.islice(self._numbered(), number, None), None)
        if task is None:
            raise FailedError("exception", f"{self._name} has no task {number}")
        return task

    def _numbered(self) -> Iterator[Any]:
        """Yield the tasks in order. Those that are made with global random numbers are the same in each process."""
        state = random.getstate()
        numpy = sys.modules.get("numpy")
        numpy_state = numpy.random.get_state() if numpy else None
        random.seed(0)
        if numpy:
            numpy.random.seed(0)
        try:
            yield from self._environment.taskset
        finally:
            random.setstate(state)
            if numpy:
                numpy.random.set_state(numpy_state)

    def _require_no_container(self) -> None:
        """Refuse tasks that need a container, or limits of the network, with verifiers' own words."""
        from verifiers.v1.runtimes.subprocess import (  # type: ignore[import-not-found, unused-ignore]
            SubprocessConfig,
        )
        from verifiers.v1.utils.compile import (  # type: ignore[import-not-found, unused-ignore]
            resolve_runtime_config,
        )

        try:
            for task in self._tasks or []:
                resolve_runtime_config(SubprocessConfig(), task)
        except ValueError as error:
            raise RefusedError(f"{self._name}: {error}", "Choose a taskset that needs no container.") from error


def load_taskset(name: str, places: Sequence[str], source: str) -> Agent:
    """Import verifiers and a taskset; return what plays its tasks.

    `places`: folders where a taskset of the user's may be, behind the installed packages. `source`: is not used, since
    packages are installed.

    Raises:
        RefusedError: verifiers is not there or of another series, or there is no such taskset that can be played here.
    """
    sys.path[:] = [*_OWN_PATH, *places]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *places]))  # of its servers
    _require_verifiers(name)
    _play_in_this_process()
    taskset = Taskset(name, places)
    return Agent(name, taskset.play, taskset.size)


def _require_verifiers(name: str) -> None:
    of_user = os.environ.get(variable_of(_PACKAGE))
    install = f"uv pip install --python {of_user} {SEPARATE[_PACKAGE]}" if of_user else _INSTALL
    try:
        version = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError as error:
        got = f"{name}, but {sys.executable} has no package verifiers"
        raise RefusedError(got, f"Install it: {install}.") from error
    if version.split(".")[:2] != SERIES.split("."):
        got = f"{name}, but verifiers {version} is installed, and lorarl plays {SERIES}"
        raise RefusedError(got, f"Install that: {install}.")


def _require_playable(name: str, places: Sequence[str]) -> None:
    """Refuse a name that is no taskset, and a taskset that needs more than a conversation and tools."""
    from verifiers.v1.envs.single_agent.env import SingleAgentEnv  # type: ignore[import-not-found, unused-ignore]
    from verifiers.v1.utils.loaders import (  # type: ignore[import-not-found, unused-ignore]
        default_harness_id,
        environment_class,
        taskset_class,
    )

    try:
        taskset = taskset_class(name)
    except ModuleNotFoundError as error:
        missing = getattr(error.__cause__, "name", None)
        if missing in (module := name.replace("-", "_").lower(), f"verifiers.v1.tasksets.{module}"):
            near = get_close_matches(name, [*_installed(), *_beside(places)], n=1)
            meant = f"Did you mean {near[0]}? Otherwise install" if near else "Install"
            got = f"{name}, which is no taskset that is installed beside verifiers"
            raise RefusedError(got, f"{meant} its package: {_INSTALL} PACKAGE.") from error
        got = f"{name}, which is installed without {missing or error.name}"
        raise RefusedError(got, f"Install what it needs: {_INSTALL} PACKAGE.") from error
    except ImportError as error:
        got = f"{name}, whose module cannot be imported ({logged(error, __file__)})"
        raise RefusedError(got, f"Install what it needs: {_INSTALL} PACKAGE.") from error
    except Exception as error:
        got = f"{name}, which verifiers cannot load ({logged(error, __file__)})"
        raise RefusedError(got, "Fix the package: its __all__ has to name one Taskset.") from error
    if environment_class(name) is not SingleAgentEnv:
        got = f"{name}, which has an environment of several roles ({environment_class(name).__name__})"
        raise RefusedError(got, "Choose a taskset for one agent, or write an agent: environment.agent.")
    if default_harness_id(name) == name:
        got = f"{name}, which has a harness of its package: lorarl plays conversations with tools"
        raise RefusedError(got, "Choose a taskset without one, or write an agent: environment.agent.")
    if taskset.task_type().NEEDS_CONTAINER:
        raise RefusedError(f"{name}, whose tasks need a container", "Choose a taskset that needs none.")


def _installed() -> list[str]:
    """Return the names of packages that need verifiers, as tasksets do, and of verifiers' own tasksets."""
    import pkgutil

    from verifiers.v1 import tasksets  # type: ignore[import-not-found, unused-ignore]

    own = [module.name for module in pkgutil.iter_modules(tasksets.__path__)]
    needing = (one for one in metadata.distributions() if any(map(_is_verifiers, one.requires or [])))
    return [*own, *(one.metadata["Name"] for one in needing)]


def _beside(places: Sequence[str]) -> list[str]:
    """Return the names of modules in the user's folders."""
    return [path.stem.replace("_", "-") for place in places for path in Path(place).glob("*.py")]


def _is_verifiers(requirement: str) -> bool:
    return requirement.startswith("verifiers") and not requirement.removeprefix("verifiers")[:1].isalnum()


def _play_in_this_process() -> None:
    """Have the null harness's program run here, where all that it needs is imported.

    verifiers makes an environment for it from the package index, and starts a Python for each episode.
    """
    from verifiers.v1.harnesses.utils.launch import (  # type: ignore[import-not-found, unused-ignore]
        CHAT_PROGRAM_SOURCE,
    )
    from verifiers.v1.runtimes import ProgramResult  # type: ignore[import-not-found, unused-ignore]
    from verifiers.v1.runtimes.subprocess import (  # type: ignore[import-not-found, unused-ignore]
        SubprocessRuntime,
    )

    for module in _FIRST_CALL:
        importlib.import_module(module)
    platform.platform()  # which openai asks for, and which starts a process once
    program: dict[str, Any] = {"__name__": _PROGRAM}
    exec(compile(CHAT_PROGRAM_SOURCE, f"<{_PROGRAM}>", "exec"), program)
    chat: Callable[[], Any] = program["main"]

    async def prepare(_: Any, script: str | bytes, env: Any = None, *, activate: bool = True) -> list[str]:
        if script != CHAT_PROGRAM_SOURCE:
            raise RuntimeError("a program of the taskset, which verifiers would fetch packages for from the index")
        return [_PROGRAM]

    async def run(runtime: Any, argv: list[str], env: dict[str, str]) -> Any:
        if argv[0] != _PROGRAM:
            return await runtime.run(argv, env)
        sys.argv = argv
        try:
            with contextlib.chdir(runtime.workdir):  # where its messages are
                await chat()
        except SystemExit as error:
            return ProgramResult(error.code if isinstance(error.code, int) else 1, "", str(error.__cause__ or error))
        except Exception as error:  # noqa: BLE001  verifiers judges it by the exit code, as in a process of its own
            return ProgramResult(1, "", f"{type(error).__name__}: {error}")
        return ProgramResult(0, "", "")

    SubprocessRuntime.prepare_uv_script, SubprocessRuntime.run_program = prepare, run


if __name__ == "__main__":
    main(load_taskset)
