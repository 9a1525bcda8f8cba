"""The operator is killed (-9) at random moments, often with its standby: nothing is done twice, lost or left.

LORARL_CHAOS_KILLS, LORARL_CHAOS_JOBS and LORARL_CHAOS_SEED choose how often, over how many lives, and which moments.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from support.cluster.api_proxy import Call, api_proxy
from support.cluster.leftovers import ends_clean
from support.cluster.lives import live
from support.cluster.mirror import mirror
from support.cluster.operator import ACCOUNT, SYSTEM, prepare
from support.cluster.platform import Platform
from support.cluster.replicas import Replicas, replicas

KILLS = int(os.environ.get("LORARL_CHAOS_KILLS") or 100)
JOBS = int(os.environ.get("LORARL_CHAOS_JOBS") or 50)
SEED = int(os.environ.get("LORARL_CHAOS_SEED") or 1)
# A part of the kills that is over when the last life begins.
ALL_HAVE_BEGUN = 0.8
LONGEST_WAIT_FOR_A_WRITE_SECONDS = 15.0


@dataclass
class Killer:
    """Kills at a random time, or while a write is under way: before the server has it, or before its answer is back."""

    kept: Replicas
    chance: random.Random
    kills: int = 0
    moments: dict[str, int] = field(default_factory=dict)
    _writes_left: int = 0
    _moment: str = ""
    _struck: threading.Event = field(default_factory=threading.Event)

    async def intercept(self, call: Call) -> web.StreamResponse:
        if not call.writes or "/leases" in call.path or "/events" in call.path or self._writes_left == 0:
            return await call.forward()
        self._writes_left -= 1
        if self._writes_left:
            return await call.forward()
        if self._moment == "before a write":
            await self._strike()
            return call.drop()
        answer = await call.fetch()
        await self._strike()
        return answer

    async def _strike(self) -> None:
        # The client goes away, which cancels what is done for it: the kill must be done nevertheless.
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._kill))

    def run(self, kills: int) -> None:
        while self.kills < kills:
            self._struck.clear()
            self._moment = self.chance.choice(("before a write", "after a write", "at some time"))
            if self._moment == "at some time":
                time.sleep(self.chance.uniform(0, 6))
                self._kill()
                continue
            self._writes_left = self.chance.randint(1, 12)
            if not self._struck.wait(LONGEST_WAIT_FOR_A_WRITE_SECONDS):
                self._writes_left = 0
                self._moment = "while nothing is written"
                self._kill()

    def _kill(self) -> None:
        leader = self.kept.leader
        victims = self.kept.names if leader is None or self.chance.random() < 0.5 else [leader]
        down = self.chance.choice((0.0, 0.0, self.chance.uniform(0, 3)))
        self.kept.kill(victims, down_seconds=down, lease_runs_out=self.chance.random() < 0.1)
        self.kills += 1
        moment = f"{self._moment}, {'all replicas' if len(victims) > 1 else 'the leader'}"
        self.moments[moment] = self.moments.get(moment, 0) + 1
        self._struck.set()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_an_operator_killed_at_any_moment_repeats_and_loses_nothing(p: Platform) -> None:
    """It does nothing twice."""
    namespace = p.namespace("kills")
    prepare(p.cluster)
    began = time.monotonic()
    with mirror(p.api, namespace) as seen, api_proxy(p.cluster) as proxy:
        kubeconfig = proxy.kubeconfig(p.cluster, "kills", p.cluster.service_account_token(SYSTEM, ACCOUNT))
        with replicas(p.cluster, kubeconfig, "left", "right") as kept:
            killer = Killer(kept, random.Random(SEED))
            proxy.intercept = killer.intercept
            killing = threading.Thread(target=killer.run, args=(KILLS,), daemon=True)
            killing.start()
            faults = live(p, seen, JOBS, lambda: killer.kills / (KILLS * ALL_HAVE_BEGUN) + 0.1, patience=180)
            killing.join()
            lived = time.monotonic() - began
            faults += ends_clean(p.api, seen)
    print(f"\n{killer.kills} kills ({killer.moments}), {kept.starts} starts, {JOBS} jobs, {lived:.0f} s, seed {SEED}")
    assert not faults + seen.violations, "\n".join(faults + seen.violations)
