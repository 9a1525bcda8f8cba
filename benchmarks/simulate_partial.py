"""How long a step's generation takes if no step waits for its longest answers (`rollout.partial`): a simulation.

python benchmarks/simulate_partial.py                              the ragged step of docs/performance.md on an H200
python benchmarks/simulate_partial.py --mean 2098 --longest 16384 --prompts 16 --rounds 1024 2048
python benchmarks/simulate_partial.py --extra 0 16 --rounds 512    some of the table

Lengths are geometric. A decode step takes a fixed time and some more for each answer that runs, and tokens that the
next step's adapter computes again take the time of a forward pass. By default these are 7B's on an H200.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Answer:
    """An answer of so many tokens, of which some are made; by the adapters of which steps it was begun and ended."""

    length: int
    begun: int
    made: int = 0


@dataclass
class Engine:
    """What generates, and how long it has taken.

    Attributes:
        step_seconds: of a decode step with so many running answers.
        token_seconds: of a token that is computed again.
        slots: answers that run at a time.
    """

    step_seconds: Callable[[int], float]
    token_seconds: float
    slots: int
    seconds: float = 0.0

    def run(self, answers: list[Answer], tokens: int) -> None:
        """Give each answer so many tokens, or all that it lacks. An answer that ends makes room for the next one."""
        left = [min(tokens, answer.length - answer.made) for answer in answers]
        for answer, more in zip(answers, left, strict=True):
            answer.made += more
        waiting, running = left[::-1], list[int]()
        while waiting or running:
            while waiting and len(running) < self.slots:
                running.append(waiting.pop())
            until = min(running)
            self.seconds += until * self.step_seconds(len(running))
            running = [more - until for more in running if more > until]

    def begin_step(self, answers: list[Answer]) -> None:
        """Compute again what earlier adapters have made."""
        self.seconds += self.token_seconds * sum(answer.made for answer in answers if answer.made < answer.length)


@dataclass
class Found:
    """What steps took, and how old their answers were."""

    seconds: list[float] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)


def simulate(chosen: argparse.Namespace, extra: int, tokens: int, seed: int = 0) -> Found:
    """Return so many steps, with `extra` prompts beside a step's and so many tokens per round."""
    draw, found = np.random.default_rng(seed), Found()
    decode, more = chosen.decode_ms / 1000, chosen.answer_ms / 1000
    engine = Engine(lambda running: decode + more * running, chosen.token_us / 1e6, chosen.slots)
    groups: list[list[Answer]] = []
    for step in range(chosen.steps):
        before = engine.seconds
        engine.begin_step([answer for group in groups for answer in group])
        while len(groups) < chosen.prompts + extra:
            lengths = np.minimum(draw.geometric(1 / chosen.mean, chosen.group), chosen.longest)
            groups.append([Answer(length, step) for length in lengths.tolist()])
        while sum(map(_whole, groups)) < chosen.prompts:
            engine.run([answer for group in groups for answer in group if answer.made < answer.length], tokens)
        whole = [group for group in groups if _whole(group)][: chosen.prompts]
        groups = [group for group in groups if all(group is not other for other in whole)]
        found.seconds.append(engine.seconds - before)
        found.behind += [step - answer.begun for group in whole for answer in group]
    return found


def _whole(group: list[Answer]) -> bool:
    return all(answer.made == answer.length for answer in group)


def parser() -> argparse.ArgumentParser:
    """Return the options and their defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--mean", type=float, default=656, help="tokens of an answer")
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--decode-ms", type=float, default=5.0, help="of a decode step")
    parser.add_argument("--answer-ms", type=float, default=0.0234, help="more for each answer that runs")
    parser.add_argument("--token-us", type=float, default=30.0, help="of a token that is computed again")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--extra", type=int, nargs="+", default=[0, 8, 16, 32], help="prompts beside a step's")
    parser.add_argument("--rounds", type=int, nargs="+", default=[256, 512, 1024], help="tokens per round")
    return parser


def main() -> None:
    chosen = parser().parse_args()
    print("extra  tokens per round  seconds of a step  shorter by  versions behind: 0, 1, 2, more")
    alone = float(np.mean(simulate(chosen, 0, chosen.longest).seconds))
    print(f"{0:5}  {'all':>16}  {alone:17.1f}")
    for extra in chosen.extra:
        for tokens in chosen.rounds:
            found = simulate(chosen, extra, tokens)
            skipped = min(5, chosen.steps // 2)  # the first steps take the shortest answers
            mean = float(np.mean(found.seconds[skipped:]))
            shares = np.bincount(np.minimum(found.behind, 3), minlength=4) / len(found.behind)
            behind = "  ".join(f"{share:.0%}" for share in shares)
            print(f"{extra:5}  {tokens:16}  {mean:17.1f}  {1 - mean / alone:10.0%}  {behind}")


if __name__ == "__main__":
    main()
