#!/usr/bin/env bash
# openenv 0.10.0: a step after a lost session is played in another session, which was never reset, without an error.
#
# A session of the client is one WebSocket, and the server has one environment for each. When the socket is lost, for
# example because a step took longer than message_timeout_s, the client connects again at its next call, without a
# word. So a trainer that tries such a step once more gets an observation and a reward of a new environment: the
# episode's state is gone, and nothing says so. One expects an error until the next reset.
#
# Output of the run at which this was written:
#   reset: steps 0, was reset True
#   step: steps 1, was reset True
#   a slow step: TimeoutError
#   the next step: steps 1, was reset False, reward 1.0
#
# Exit code 0: openenv still behaves so. 1: it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check openenv==0.10.0
"$folder/env/bin/python" -W ignore - <<'PYTHON'
import asyncio
import socket
import threading
import time

import uvicorn
from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Wait(Action):
    seconds: float = 0.0


class Seen(Observation):
    steps: int
    was_reset: bool


class Counter(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.steps, self.was_reset = 0, False

    def reset(self, seed=None, episode_id=None, **_):
        self.steps, self.was_reset = 0, True
        return Seen(steps=0, was_reset=True)

    def step(self, action, timeout_s=None, **_):
        time.sleep(action.seconds)
        self.steps += 1
        return Seen(steps=self.steps, was_reset=self.was_reset, reward=1.0)

    @property
    def state(self):
        return State()


with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
server = uvicorn.Server(
    uvicorn.Config(create_fastapi_app(Counter, Wait, Seen, max_concurrent_envs=4), port=port, log_level="error")
)
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.01)


def said(name, result):
    steps, was_reset = result.observation["steps"], result.observation["was_reset"]
    print(f"{name}: steps {steps}, was reset {was_reset}", end="")
    return steps, was_reset


async def main():
    async with GenericEnvClient(base_url=f"http://127.0.0.1:{port}", message_timeout_s=1.0) as client:
        said("reset", await client.reset())
        print()
        said("step", await client.step({}))
        print()
        try:
            await client.step({"seconds": 2.0})
        except TimeoutError as error:
            print(f"a slow step: {type(error).__name__}")
        again = await client.step({})
        found = said("the next step", again)
        print(f", reward {again.reward}")
        return found


raise SystemExit(asyncio.run(main()) != (1, False))
PYTHON
