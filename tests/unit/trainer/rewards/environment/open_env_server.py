"""A real server of OpenEnv with small environments: `open_env_server.py PORT KIND SESSIONS`, by a Python with openenv.

It prints "up" when it answers. KIND is the environment: `number` takes JSON, the others take texts.
SESSIONS is how many it has at a time.
"""

import sys
from enum import Enum
from pathlib import Path

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import field_validator


class Guess(Action):
    guess: int
    why: str = ""

    @field_validator("guess")
    @classmethod
    def check(cls, value: int) -> int:
        if value == -13:
            raise ValueError("unlucky")
        return value


class Text(Action):
    message: str
    loud: bool = False


class Move(Enum):
    up, down = "up", "down"


class Walk(Action):
    move: Move


class Said(Observation):
    text: str = ""


class Seen(Observation):
    stdout: str
    exit_code: int
    nothing: str | None = None


class Toy(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    @property
    def state(self) -> State:
        return State()


class Number(Toy):
    """The number is the seed, modulo 10."""

    def reset(self, seed=None, episode_id=None, most=9, **_):
        self.secret, self.turns = seed % 10, 0
        return Said(text=f"Guess a number from 0 to {most}.")

    def step(self, action, timeout_s=None, **_):
        self.turns += 1
        if action.guess == 100:
            raise KeyError("broken")
        if action.guess == 101:
            return Said(text=None)
        if action.guess == 102:
            return Said(text="", reward=float("nan"), done=True)
        hit = action.guess == self.secret
        said = "It is higher." if action.guess < self.secret else "It is lower."
        about = {"turns": self.turns, "name": "x", "bad name": 1, "inner": {"a": 1}}
        return Said(text=said, done=hit, reward=1.0 if hit else None, metadata=about)


class Words(Toy):
    """Commands in texts: what they are called is what they do."""

    def reset(self, seed=None, episode_id=None, text="ready", done=False):
        return Seen(stdout=text, exit_code=seed % 2, done=done)

    def step(self, action, timeout_s=None, **_):
        command, _, argument = action.message.partition(" ")
        if command == "long":
            return Seen(stdout="x" * int(argument), exit_code=0)
        if command == "wait":  # until the trainer has gone, which ends the session
            while not Path(argument).exists():
                pass
        return Seen(stdout=f"{command} {action.loud}", exit_code=0, reward=0.25, done=command == "bye")


class Stairs(Toy):
    def reset(self, seed=None, episode_id=None):
        return Said(text="Up or down?")

    def step(self, action, timeout_s=None, **_):
        return Said(text="", reward=action.move == Move.up, done=True)


class Vowels(Toy):
    """Counts the vowels of two turns. The opening follows from the seed."""

    def reset(self, seed=None, episode_id=None):
        self.turns = 0
        return Said(text=f"say {seed % 7}")

    def step(self, action, timeout_s=None, **_):
        self.turns += 1
        reward = sum(letter in "aeiou" for letter in action.message) / 8
        about = {"long": len(action.message)}
        return Said(text=f"you wrote {len(action.message)}", reward=reward, done=self.turns == 2, metadata=about)


KINDS = {
    "number": (Number, Guess, Said),
    "words": (Words, Text, Seen),
    "stairs": (Stairs, Walk, Said),
    "vowels": (Vowels, Text, Said),
}


class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("up", flush=True)


if __name__ == "__main__":
    port, kind, sessions = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    app = create_fastapi_app(*KINDS[kind], max_concurrent_envs=sessions)
    Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error")).run()
