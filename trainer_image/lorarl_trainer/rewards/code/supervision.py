"""One test: a process runs the completion's program, and this one feeds it, reads it, ends it, and judges its end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Mapping
from typing import Any

from lorarl_trainer.rewards.code.program import End, digest_of, run_program

_CHUNK = 65_536
_MOST_SAID_BYTES = 4000
_POLL_SECONDS = 1.0


def run(job: Mapping[str, Any], memory: int, most_output: int, parent: int) -> dict[str, Any]:
    """Run one test. Returns how it ended, in detail, and the digest of what was printed.

    `parent`: number of the trainer's process. When it is gone, this process ends.
    """
    pipes = [os.pipe() for _ in range(4)]
    (input_read, input_write), (output_read, output_write), (said_read, said_write), (proof_read, proof_write) = pipes
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        run_program(job, memory, (input_read, output_write, said_write, proof_read), own)
    # Made after the fork, and read by the process after the completion's code: code that ends the process early, or
    # says that all is well, does not know it. The process may have ended: the pipe's other end is still open here.
    proof = os.urandom(16).hex()
    os.write(proof_write, proof.encode())
    for descriptor in (input_read, output_write, said_write, proof_read, proof_write):
        os.close(descriptor)
    program = Program(pid, input_write, output_read, said_read, job["input"].encode(errors="replace"))
    try:
        stopped = program.until_end(time.monotonic() + job["seconds"], most_output, parent)
    finally:
        status, computing_seconds = program.end()
    end, message = stopped or ended(
        status,
        bytes(program.said),
        proof if job["test"] is not None else None,
        over_time=computing_seconds >= job["seconds"],
    )
    return {"end": end, "message": message, "output": digest_of(program.output.decode(errors="replace"))}


def ended(status: int, said: bytes, proof: str | None, *, over_time: bool) -> tuple[End, str]:
    """Judge how a process ended by itself.

    `proof`: what only a process that has run its assertions can know; None if there are none. `over_time`: whether it
    computed for as long as it may.
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGSYS:
            return "forbidden", "made a forbidden system call: to start a process, use the network, or reach another"
        if number == signal.SIGXCPU or over_time:
            return "timeout", "computed for too long"
        if number == signal.SIGKILL:
            return "memory", "was ended by the kernel, which runs out of memory"
        return "exception", f"was ended by {signal.Signals(number).name}"
    code = os.WEXITSTATUS(status)
    try:
        claim = json.loads(said)
        end, message, proved = str(claim["end"]), str(claim["message"]), claim["proof"] == proof
    except (ValueError, KeyError, TypeError):
        end, message, proved = "", "", False
    if end in ("failed", "exception", "memory"):
        return end, message  # type: ignore[return-value]
    if proof is not None and not proved:
        return "exception", f"ended the process with code {code} before its tests"
    return ("ended", "") if code == 0 else ("exception", f"ended the process with code {code}")


class Program:
    """A process that runs a program, with what it reads and writes.

    Attributes:
        output: what it printed.
        said: what it wrote about its end.
    """

    def __init__(self, pid: int, to: int, output: int, said: int, data: bytes) -> None:
        """Follow process `pid` by our ends of its pipes; `data` is its input."""
        self._pid, self._to, self._output, self._said = pid, to, output, said
        self._data = memoryview(data)
        self._handle = os.pidfd_open(pid)
        self._open = {to, output, said, self._handle}
        self.output, self.said = bytearray(), bytearray()
        for descriptor in (to, output, said):
            os.set_blocking(descriptor, False)
        self._poller = select.poll()
        for descriptor in (output, said, self._handle):
            self._poller.register(descriptor, select.POLLIN)
        self._poller.register(to, select.POLLOUT)

    def until_end(self, deadline: float, most_output: int, parent: int) -> tuple[End, str] | None:
        """Feed and read the process until it ends. Returns why it has to be ended, or None."""
        while (left := deadline - time.monotonic()) > 0:
            if os.getppid() != parent:
                os._exit(0)  # the kernel ends the test with this process
            ready = [descriptor for descriptor, _ in self._poller.poll(min(left, _POLL_SECONDS) * 1000)]
            if self._to in ready:
                self._feed()
            self._read(self._output, self.output, most_output)
            self._read(self._said, self.said, _MOST_SAID_BYTES)
            if len(self.output) > most_output or len(self.said) > _MOST_SAID_BYTES:
                return "output", f"printed more than {most_output:,} bytes"
            if self._handle in ready:
                return None
        return "timeout", "took too long"

    def end(self) -> tuple[int, float]:
        """End the process if it runs. Returns its wait status, and for how many seconds it computed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        _, status, usage = os.wait4(self._pid, 0)
        for descriptor in list(self._open):
            self._close(descriptor)
        return status, usage.ru_utime + usage.ru_stime

    def _feed(self) -> None:
        try:
            self._data = self._data[os.write(self._to, self._data[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._data = self._data[:0]
        if not self._data:
            self._close(self._to)  # the program sees the end of its input

    def _read(self, descriptor: int, into: bytearray, most: int) -> None:
        """Read what there is, and not much more than is allowed."""
        while descriptor in self._open and len(into) <= most:
            try:
                chunk = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return
            into += chunk
            if not chunk:
                self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.remove(descriptor)
            self._poller.unregister(descriptor)
            os.close(descriptor)
