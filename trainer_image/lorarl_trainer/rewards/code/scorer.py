"""Scores completions by the tests that their program passes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from lorarl_api.v1alpha1 import CodeReward
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.code.cases import FORMS, Case, CasesError, cases_of, program_of, require_python
from lorarl_trainer.rewards.code.process import BrokenError, RefusedError, Sandbox, Verdict
from lorarl_trainer.rewards.scores import Outcome, ToScore

STOPPED = ("timeout", "memory", "output", "forbidden")
"""What a sandbox stops a program for. Each is a component `stopped_NAME`: 1 if it happened to the completion."""


class CodeScorer:
    """Runs programs in several sandboxes at a time, each of which lives as long as this scorer."""

    def __init__(self, spec: CodeReward, *, timeout_seconds: float, field: str, processes: int) -> None:
        """Make a scorer. Nothing starts before `warm_up`."""
        self._spec, self._limit, self.field = spec, timeout_seconds, field
        self._sandboxes = [
            Sandbox(memory_bytes=spec.memory_mib << 20, require_landlock=spec.require_landlock)
            for _ in range(processes)
        ]
        self._idle: SimpleQueue[Sandbox] = SimpleQueue()
        for sandbox in self._sandboxes:
            self._idle.put(sandbox)
        self._threads = ThreadPoolExecutor(processes, "code")

    def warm_up(self) -> None:
        """Do nothing: a sandbox starts within milliseconds."""

    async def ready(self) -> None:
        """Start one sandbox. Raises InputError if none can run on this machine."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._try)

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        """Score samples. More may be given meanwhile."""
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(self._threads, self._outcome, sample) for sample in samples))

    def close(self) -> None:
        """End all sandboxes with their programs."""
        for sandbox in self._sandboxes:
            sandbox.end()
        self._threads.shutdown(cancel_futures=True)
        for sandbox in self._sandboxes:
            sandbox.close()

    def _try(self) -> None:
        sandbox = self._idle.get()
        try:
            sandbox.start()
        except (RefusedError, BrokenError) as error:
            raise InputError(
                self.field,
                str(error),
                "a machine that can keep a program from files, network and other processes",
                f"Use nodes with Linux 5.13 or newer on x86_64 with Landlock in their list of security modules. Where "
                f"only Landlock is missing, {self.field}.requireLandlock: false runs programs that can read files.",
            ) from error
        finally:
            self._idle.put(sandbox)

    def _outcome(self, sample: ToScore) -> Outcome:
        try:
            require_python(cases := cases_of(sample.row.get(self._spec.tests_field)))
        except CasesError as error:
            return Outcome.failed("wrong_type", f"the row's column {self._spec.tests_field} has {error}")
        program = program_of(sample.completion)
        if not program.strip():
            return _scored([], len(cases), all_of_them=self._spec.score == "all")
        sandbox = self._idle.get()
        try:
            return self._tested(sandbox, program, cases)
        except (BrokenError, RefusedError) as error:
            return Outcome.failed("crash", str(error))
        finally:
            self._idle.put(sandbox)

    def _tested(self, sandbox: Sandbox, program: str, cases: Sequence[Case]) -> Outcome:
        sandbox.start()
        deadline, results = time.monotonic() + self._limit, list[tuple[bool, Verdict]]()
        for case in cases:
            seconds = min(self._spec.seconds_per_test, deadline - time.monotonic())
            if seconds <= 0:
                results.append((False, Verdict("timeout", "the time for all tests was over", "")))
                break
            verdict = sandbox.run(program, case.assertions, case.input, seconds)
            results.append((verdict.passed(case.output), verdict))
            if self._spec.score == "all" and not results[-1][0]:
                break
        return _scored(results, len(cases), all_of_them=self._spec.score == "all")


def _scored(results: Sequence[tuple[bool, Verdict]], tests: int, *, all_of_them: bool) -> Outcome:
    """Combine a completion's tests. Those that were not run count as failed."""
    passed = sum(good for good, _ in results)
    ends = {verdict.end for _, verdict in results}
    return Outcome(
        float(passed == tests) if all_of_them else passed / tests,
        components={
            "tests_passed": passed / tests,
            "no_program": float(not results),
            "exception": float("exception" in ends),
            **{f"stopped_{cause}": float(cause in ends) for cause in STOPPED},
        },
    )


def check_row(spec: CodeReward, row: Mapping[str, Any], number: int, field: str, *, compiled: bool = True) -> None:
    """Refuse a row without tests, or with one that cannot run.

    `compiled`: whether to look if assertions are Python, which takes some 20 microseconds each.

    Raises:
        InputError: the row's column has no tests in any known form, or some that are no Python.
    """
    columns = f"(the row has {', '.join(sorted(row))})"
    try:
        cases = cases_of(row.get(spec.tests_field))
    except CasesError as error:
        got = f"{error} in row {number}" if spec.tests_field in row else f"no column {spec.tests_field} in row {number}"
        hint = f"Name the column with the tests {columns}."
        raise InputError(f"{field}.testsField", got, FORMS, hint) from error
    try:
        if compiled:
            require_python(cases)
    except CasesError as error:
        hint = f"Fix that test, or name another column {columns}."
        raise InputError(f"{field}.testsField", f"{error} in row {number}", "assertions in Python", hint) from error
