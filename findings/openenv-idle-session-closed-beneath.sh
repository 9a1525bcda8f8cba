#!/usr/bin/env bash
# openenv 0.10.0: with session_timeout, an open session loses its environment, and its later steps succeed all the same.
#
# ConcurrencyConfig.session_timeout is for inactive sessions. The server also counts the time in which a connected
# client only waits, as while a model writes its turn: it calls close() of that session's environment and gives its
# place to another. The WebSocket remains open, and a step is still played, in the closed environment, with a reward
# and without an error. Sessions that are attached by their id are spared; those that /ws itself begins are not.
#
# Output of the run at which this was written:
#   reset: closed False
#   a step after a pause: closed True, reward 1.0
#   sessions of which one may be open: 2
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
from openenv.core.env_server.types import Action, ConcurrencyConfig, Observation, State


class Seen(Observation):
    closed: bool


class Door(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.closed = False

    def reset(self, seed=None, episode_id=None, **_):
        return Seen(closed=self.closed)

    def step(self, action, timeout_s=None, **_):
        return Seen(closed=self.closed, reward=1.0)

    def close(self):
        self.closed = True

    @property
    def state(self):
        return State()


with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
limits = ConcurrencyConfig(max_concurrent_envs=1, session_timeout=1.0)
app = create_fastapi_app(Door, Action, Seen, concurrency_config=limits)
server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.01)


async def main():
    url = f"http://127.0.0.1:{port}"
    async with GenericEnvClient(base_url=url) as client, GenericEnvClient(base_url=url) as other:
        return await play(client, other)


async def play(client, other):
    print("reset: closed", (await client.reset()).observation["closed"])
    await asyncio.sleep(8)  # the server looks every 5 s
    after = await client.step({})
    print(f"a step after a pause: closed {after.observation['closed']}, reward {after.reward}")
    opened = [await other.reset(), await client.step({})]
    print("sessions of which one may be open:", len(opened))
    return after.observation["closed"]


raise SystemExit(not asyncio.run(main()))
PYTHON
