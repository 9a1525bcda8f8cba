"""Environments of a user, and how tests play episodes with them."""

from __future__ import annotations

ENVIRONMENTS = """
import asyncio, datetime, os, random, subprocess, sys, time
from pathlib import Path

class Echo:
    async def reset(self, row):
        self.turns, self.row = 0, row
        return f"{row['word']} {random.randrange(10**9)} {sorted({'a', 'b', 'c', 'd'}) != []} {list({'x', 'y', 'z'})}"

    async def step(self, text):
        await asyncio.sleep(0)
        self.turns += 1
        return {"text": text.upper(), "reward": 0.5, "done": self.turns == 2, "turns": self.turns}

class Plain:
    def reset(self, row): return [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    def step(self, text): return {"text": "next"}

class Odd:
    def __init__(self):
        self.how = None

    def reset(self, row):
        self.how = row["how"]
        if self.how == "reset none": return None
        if self.how == "reset number": return [3]
        if self.how == "reset raises": raise ValueError("first\\n  second")
        if self.how == "reset hangs": time.sleep(1e6)
        if self.how == "reset floods": return "x" * 10_000_000
        return "go"

    def step(self, text):
        if self.how == "raises": return {}["level"]
        if self.how == "none": return None
        if self.how == "number": return 0.5
        if self.how == "nothing in it": return {"score": 1.0}
        if self.how == "no text": return {"reward": 1.0}
        if self.how == "text of bytes": return {"text": b"x"}
        if self.how == "no unicode": return {"text": "\\ud800"}
        if self.how == "done by words": return {"text": "", "done": "yes"}
        if self.how == "nan": return {"text": "", "reward": float("nan")}
        if self.how == "component": return {"text": "", "found": "it"}
        if self.how == "hangs":
            while True: pass
        if self.how == "waits": time.sleep(1e6)
        if self.how == "floods": return {"text": "x" * 10_000_000}
        if self.how == "leaves": sys.exit(3)
        if self.how == "dies": os.kill(os.getpid(), 9)
        if self.how == "has a child":
            child = subprocess.Popen(["sleep", "1000"])
            Path("child.txt").write_text(str(child.pid))
            time.sleep(1e6)

class Hungry:
    def reset(self, row): return "go"
    async def step(self, text): await asyncio.sleep(1e6)

class Lacks:
    def reset(self, row): return "go"

class Wants:
    def __init__(self, level): pass
    def reset(self, row): return "go"
    def step(self, text): return {"done": True}

class Narrow:
    def reset(self): return "go"
    def step(self, text): return {"done": True}

def function(row): return 1.0
"""


TOOLS = """
import asyncio, datetime, os, random, subprocess, sys, time

counted = 0

async def add(x: int, y: int = 2) -> int:
    \"\"\"Add two numbers.

    Args:
        x: The first.
        y: The second.
    \"\"\"
    await asyncio.sleep(0)
    return x + y

def count() -> dict:
    \"\"\"Count the calls.\"\"\"
    global counted
    counted += 1
    return {"calls": counted, "drawn": random.randrange(10**9)}

async def waits() -> str:
    \"\"\"Wait.\"\"\"
    await asyncio.sleep(1e6)

def odd(how: str) -> str:
    \"\"\"Do something odd.

    Args:
        how: What to do.
    \"\"\"
    if how == "raises": return {}["level"]
    if how == "leaves": sys.exit(3)
    if how == "sleeps": time.sleep(1e6)
    if how == "loops":
        while True: pass
    if how == "waits for a child": subprocess.run(["sleep", "1000"])
    if how == "floods": return "x" * 10_000_000
    if how == "no unicode": return "\\ud800"
    if how == "none": return None
    if how == "object": return object()
    if how == "dies": os.kill(os.getpid(), 9)
    if how == "nan": return float("nan")
    if how == "infinity": return {"means": [1.0, float("-inf")]}
    if how == "bytes": return b"x"
    if how == "set": return {"names": {"a"}}
    if how == "date": return datetime.date(2026, 1, 1)
    if how == "key": return {(1, 2): 3}

def bare(x): return x

def undescribed(x: int) -> int:
    \"\"\"Return it.\"\"\"
    return x
"""
