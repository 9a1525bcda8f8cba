"""Reward functions of a user, and how tests have them score."""

from __future__ import annotations

import asyncio
from typing import Any

from lorarl_trainer.rewards.scores import Outcome, Scorer, Scores, ToScore, collect

FUNCTIONS = """
import asyncio, ctypes, os, re, subprocess, sys, time
from pathlib import Path

def length(prompt, completion, answer, row):
    return len(completion)

def arguments(prompt, completion, answer, row):
    return float((prompt, completion, answer, row) == ([{"role": "user", "content": "p"}], "c", None, {"level": 3}))

def misbehave(prompt, completion, answer, row):
    if completion == "raise": return {}["level"]
    if completion == "lines": raise ValueError("first\\n  second")
    if completion == "leave": sys.exit(3)
    if completion == "exit": os._exit(3)
    if completion == "segfault": ctypes.string_at(0)
    if completion == "hang":
        while True: pass
    if completion == "wait": time.sleep(1e6)
    numbers = {"nan": float("nan"), "inf": float("-inf"), "huge": 10**400, "large": 1e31, "true": True, "int": 2}
    return {**numbers, "none": None, "text": "0.5"}[completion]

together = None

async def meet(prompt, completion, answer, row):
    global together
    together = together or asyncio.Barrier(row["calls"])
    await together.wait()
    return 1.0

async def judge(prompt, completion, answer, row):
    await asyncio.sleep(float(completion))
    return float(completion)

def gated(prompt, completion, answer, row):
    while completion == "gate" and Path(row["gate"]).exists(): time.sleep(0.005)
    return 1.0

async def misbehave_async(prompt, completion, answer, row):
    if completion == "wait": await asyncio.sleep(1e6)
    # No other thread of the process runs meanwhile.
    if completion == "backtrack": return float(bool(re.match("(a+)+b", "a" * 60)))
    if completion.startswith("long"): return len(completion)
    await asyncio.sleep(0)
    return misbehave(prompt, completion, answer, row)

def with_child(prompt, completion, answer, row):
    child = subprocess.Popen(["sleep", "1000"])
    Path(row["file"]).write_text(f"{os.getpid()} {child.pid}")
    os.rename(row["file"], row["file"] + ".done")
    time.sleep(1e6)

def parts(prompt, completion, answer, row):
    return {"score": len(completion), "format": completion.startswith("<"), "length": float(len(completion))}

async def parts_async(prompt, completion, answer, row):
    await asyncio.sleep(0)
    return parts(prompt, completion, answer, row)

def bad_parts(prompt, completion, answer, row):
    return {
        "fine": {"score": 1},
        "no score": {"format": 1.0},
        "none": {"score": 1, "format": None},
        "nan": {"score": 1, "format": float("nan")},
        "score": {"score": "high"},
        "name": {"score": 1, "a name": 2},
        "number": {"score": 1, 3: 2},
        "many": {"score": 1, **{f"c{i}": i for i in range(33)}},
    }[completion]

def told(prompt, completion, answer, row, truncated): return float(truncated)

async def told_by_keyword(prompt, completion, answer, row, *, truncated): return float(truncated)

def with_options(prompt, completion, answer, row, **options): return len(options)

def other_order(prompt, truncated, answer, row): return len(truncated)

def wrong_signature(prompt, completion): return 1.0

def defaults(prompt, completion, answer, row, scale=2): return scale

number = 5
"""


def samples(*completions: str, row: dict[str, Any] | None = None) -> list[ToScore]:
    return [ToScore("p", completion, "a", row or {}) for completion in completions]


def score(scorer: Scorer, *completions: str, row: dict[str, Any] | None = None) -> Scores:
    return score_samples(scorer, samples(*completions, row=row))


def score_samples(scorer: Scorer, samples: list[ToScore]) -> Scores:
    return collect(score_outcomes(scorer, samples), scorer.field)


def score_outcomes(scorer: Scorer, samples: list[ToScore]) -> list[Outcome]:
    return asyncio.run(scorer.score(samples))


def score_parts(scorer: Scorer, *parts: list[ToScore], seconds: float = 0.0) -> list[Scores]:
    """Give one part after the other, so many seconds apart, and wait for all."""

    async def run() -> list[Scores]:
        scoring = []
        for part in parts:
            scoring.append(asyncio.create_task(scorer.score(part)))
            await asyncio.sleep(seconds)
        return [collect(outcomes, scorer.field) for outcomes in await asyncio.gather(*scoring)]

    return asyncio.run(run())
