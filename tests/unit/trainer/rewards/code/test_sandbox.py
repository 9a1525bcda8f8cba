"""Attacks of programs, each made for real: contained, ended, and named by its cause. The sandbox serves on."""

from __future__ import annotations

import encodings.idna
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest

from lorarl_trainer.rewards.code.process import BrokenError, Sandbox, Verdict, readable_paths
from lorarl_trainer.rewards.code.sandbox import confine
from lorarl_trainer.rewards.code.supervision import run
from support.other_user import as_a_user, open_folder

MEMORY = 256 << 20
LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
ATTACKS = {
    "fork bomb": ("import os\nwhile True: os.fork()", "forbidden"),
    "subprocess": ("import subprocess; subprocess.run(['/bin/ls'])", "forbidden"),
    "exec": ("import os; os.execv('/bin/ls', ['ls'])", "forbidden"),
    "threads": ("import threading, time\nwhile True: threading.Thread(target=time.sleep, args=[9]).start()",
                "exception"),
    "endless loop": ("while True: pass", "timeout"),
    "sleep": ("import time; time.sleep(1000)", "timeout"),
    "deaf loop": ("import signal\nfor n in range(1, 32):\n  try: signal.signal(n, signal.SIG_IGN)\n"
                  "  except OSError: pass\nwhile True: pass", "timeout"),
    "stop": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "timeout"),
    "10 GB": ("x = bytearray(10 * 1000**3)", "memory"),
    "memory grows": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "memory"),
    "10 GB in C": (LIBC + "libc.mmap.restype = ctypes.c_long\n"
                   "assert libc.mmap(None, ctypes.c_size_t(10 * 1000**3), 3, 0x22, -1, 0) == -1; 1/0", "exception"),
    "shared memory": (LIBC + "libc.shmget(0, 1 << 30, 0o1600)", "forbidden"),
    "flood": ("while True: print('x' * 1000)", "output"),
    "flood of errors": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "timeout"),
    "flood of verdicts": ("import os\nwhile True: os.write(3, b'x' * 1000)", "output"),
    "network": ("import socket; socket.create_connection(('127.0.0.1', 9))", "forbidden"),
    "name": ("import socket; socket.getaddrinfo('example.com', 80)", "forbidden"),
    "abstract socket": ("import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", "forbidden"),
    "read": ("print(open('SECRET').read())", "exception"),
    "read a folder": ("import os; os.listdir('FOLDER')", "exception"),
    "environment": ("import os; open(f'/proc/{os.getppid()}/environ', 'rb').read()", "exception"),
    "memory of others": (LIBC + "libc.process_vm_readv(1, None, 0, None, 0, 0)", "forbidden"),
    "ptrace": (LIBC + "import os; libc.ptrace(16, os.getppid(), 0, 0)", "forbidden"),
    "write": ("open('SECRET', 'a').write('x')", "exception"),
    "write new": ("open('FOLDER/new', 'w')", "exception"),
    "truncate": ("import os; os.truncate('SECRET', 0)", "exception"),
    "truncate at open": ("import os; os.open('SECRET', os.O_RDONLY | os.O_TRUNC)", "exception"),
    "remove": ("import os; os.remove('SECRET')", "exception"),
    "rename": ("import os; os.rename('SECRET', 'FOLDER/other')", "exception"),
    "folder": ("import os; os.mkdir('FOLDER/new')", "exception"),
    "link": ("import os; os.link('SECRET', 'FOLDER/new')", "exception"),
    "mode": ("import os; os.chmod('SECRET', 0)", "exception"),
    "kill the parent": ("import os; os.kill(os.getppid(), 9)", "forbidden"),
    "kill the group": ("import os; os.killpg(0, 9)", "forbidden"),
    "kill all": ("import os; os.kill(-1, 9)", "forbidden"),
    "limits of others": ("import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
                         "forbidden"),
    "own limits": ("import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "exception"),
    "session": ("import os; os.setsid()", "forbidden"),
    "namespace": (LIBC + "libc.unshare(0x10000000)", "forbidden"),
    "32 bit": (LIBC + "libc.syscall(0x40000000 + 39)", "forbidden"),
    "priority": ("import os; os.nice(-5); os.setpriority(os.PRIO_PROCESS, 0, -20)", "exception"),
    "leave early": ("import os; os._exit(0)", "exception"),
    "leave": ("import sys; sys.exit(0)", "exception"),
    "say that all is well": ("import os; os.write(3, b'{\"end\": \"ended\", \"message\": \"\", \"proof\": \"\"}')\n"
                             "os._exit(0)", "exception"),
    "crash": ("import ctypes; ctypes.string_at(0)", "exception"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(memory_bytes=MEMORY, require_landlock=True)
    made.start()
    yield made
    made.close()


def attacked(attack: str, run: Callable[[str, float], Verdict]) -> None:
    """Attack by a program whose assertions hold if it survives, beside a file that it must not reach.

    It gets little time only if it must end by a timeout: on a busy machine the others take longer than that.
    """
    code, end = ATTACKS[attack]
    with open_folder() as folder:
        secret = folder / "secret"
        secret.write_text("the key")
        (folder / "mine").mkdir()
        (folder / "mine").chmod(0o777)
        for name, value in (("SECRET", secret), ("FOLDER", folder / "mine")):
            code = code.replace(name, str(value))
        verdict = run(code, 0.4 if end == "timeout" else 9.0)
        assert secret.read_text() == "the key"
        assert secret.stat().st_mode & 0o777
        assert list((folder / "mine").iterdir()) == []
    assert verdict.end == end, verdict


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_contained_and_named(sandbox: Sandbox, attack: str) -> None:
    attacked(attack, lambda code, seconds: sandbox.run(code, "assert True", "", seconds))
    assert sandbox.run("print(6 * 7)", None, "", 5.0).passed("42")  # the next program is not affected


@pytest.mark.parametrize("attack", ["fork bomb", "network", "read", "write new", "kill the parent", "endless loop"])
def test_it_holds_without_any_privilege(attack: str) -> None:
    """As in a pod of the security level restricted, and with the user's own folder open to it."""

    attacked(attack, lambda code, seconds: as_a_user(run_here, code, seconds))


def in_a_fork[T](function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a process that may give up its rights."""
    with ProcessPoolExecutor(1, get_context("fork")) as process:
        return process.submit(function, *arguments).result()


def run_here(code: str, seconds: float) -> Verdict:
    """Confine this process and run a program, as a sandbox does."""
    assert encodings.idna  # a program uses it, and this user may not be able to read the interpreter's folder
    assert confine({"readable": readable_paths(), "landlock": True}) is None
    job = {"code": code, "test": "assert True", "input": "", "seconds": seconds}
    return Verdict(**run(job, MEMORY, 1 << 20, os.getppid()))


def run_without_landlock(code: str, seconds: float) -> Verdict:
    """Confine this process as on a kernel without Landlock, and run a program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lorarl_trainer.rewards.code.sandbox.landlock_version", lambda: 0)
        assert confine({"readable": [], "landlock": True}) == (
            "a kernel without Landlock, which keeps programs from reading the trainer's files"
        )
        assert confine({"readable": [], "landlock": False}) is None
    job = {"code": code, "test": "assert True", "input": "", "seconds": seconds}
    return Verdict(**run(job, MEMORY, 1 << 20, os.getppid()))


@pytest.mark.parametrize(
    "attack", ["write", "write new", "truncate", "truncate at open", "remove", "rename", "folder", "link", "mode"]
)
def test_files_are_safe_from_writes_without_landlock(attack: str) -> None:
    attacked(attack, lambda code, seconds: in_a_fork(run_without_landlock, code, seconds))


def run_supervised_late(code: str) -> Verdict:
    """Run a program whose supervisor makes the proof only when the program has ended."""

    def late(count: int) -> bytes:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        return bytes(count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", late)
        return Verdict(**run({"code": code, "test": None, "input": "", "seconds": 9.0}, MEMORY, 1 << 20, os.getppid()))


def test_a_program_that_ends_before_its_supervisor_goes_on_is_judged() -> None:
    assert in_a_fork(run_supervised_late, "print(6 * 7)").passed("42")


def test_what_a_program_prints_is_compared(sandbox: Sandbox) -> None:
    double = "for line in iter(input, ''): print(2 * int(line), ' ')"
    verdict = sandbox.run(double, None, "1\n21\n\n", 5.0)
    assert verdict.passed("2\n42") and verdict.passed("2 \n42\n\n") and not verdict.passed("2 42")
    verdict = sandbox.run(f"{double}\n1 / 0", None, "1\n\n", 5.0)
    assert not verdict.passed("2")
    assert (verdict.end, verdict.message) == ("exception", "ZeroDivisionError: division by zero")
    assert sandbox.run("import sys; print(3); sys.exit()", None, "", 5.0).passed("3")
    assert not sandbox.run("import sys; print(3); sys.exit(1)", None, "", 5.0).passed("3")


def test_assertions_use_the_names_of_the_program(sandbox: Sandbox) -> None:
    program = "def add(a, b): return a + b\nif __name__ == '__main__': raise SystemExit"
    assert sandbox.run(program, "assert add(1, 2) == 3", "", 5.0).passed(None)
    verdict = sandbox.run(program, "assert add(1, 2) == 4, add(1, 2)", "", 5.0)
    assert (verdict.end, verdict.message) == ("failed", "AssertionError: 3")
    verdict = sandbox.run(program, "assert sub(1, 2) == 3", "", 5.0)
    assert (verdict.end, verdict.message) == ("exception", "NameError: name 'sub' is not defined")
    assert sandbox.run("def f(:", "assert True", "", 5.0).message.startswith("SyntaxError: ")


def test_a_large_input_reaches_a_program(sandbox: Sandbox) -> None:
    text = "7\n" * 1_000_000
    assert sandbox.run("import sys; print(sum(map(int, sys.stdin)))", None, text, 20.0).passed("7000000")
    assert sandbox.run("print('unread')", None, text, 20.0).passed("unread")


@pytest.mark.parametrize("module", ["numpy", "asyncio", "ctypes", "sympy", "pandas"])
def test_libraries_that_only_compute_can_be_imported(module: str) -> None:
    uses = {"asyncio": "asyncio.run(asyncio.sleep(0))", "numpy": "assert (numpy.ones(3) @ numpy.ones(3)) == 3"}
    roomy = Sandbox(memory_bytes=1 << 30, require_landlock=True)
    roomy.start()
    try:
        verdict = roomy.run(f"import {module}\n{uses.get(module, '')}", "assert True", "", 20.0)
        assert verdict.end == "ended", verdict
    finally:
        roomy.close()


def test_no_secret_of_the_environment_is_there(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the key")
    own = Sandbox(memory_bytes=MEMORY, require_landlock=True)
    own.start()
    try:
        assert own.run("import os; print('AWS_SECRET_ACCESS_KEY' in os.environ)", None, "", 5.0).passed("False")
        assert own.run("import os; print(sorted(os.fstat(n) and n for n in range(5)))", None, "", 5.0).end == "ended"
        assert own.run("import os; os.fstat(5)", None, "", 5.0).message == "OSError: [Errno 9] Bad file descriptor"
    finally:
        own.close()


@pytest.mark.usefixtures("children_ignored")
def test_a_sandbox_works_where_the_trainer_ignores_its_children() -> None:
    own = Sandbox(memory_bytes=MEMORY, require_landlock=True)
    try:
        own.start()
        assert own.run("print(1)", None, "", 20.0).passed("1")
    finally:
        own.close()


def test_a_sandbox_ends_with_the_trainer(tmp_path: Path) -> None:
    """Also while a program runs, which the trainer cannot tell to end once it is killed."""
    script = f"""
import threading
from lorarl_trainer.rewards.code.process import Sandbox
sandbox = Sandbox(memory_bytes={MEMORY}, require_landlock=True)
sandbox.start()
print(sandbox.pid, flush=True)
sandbox.run("while True: pass", None, "", 100.0)
"""
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    made = psutil.Process(int(trainer.stdout.readline()))
    while not (programs := made.children()):
        pass
    trainer.kill()
    trainer.wait()
    assert psutil.wait_procs([made, *programs], timeout=20)[1] == []


def test_a_program_does_not_begin_without_its_sandbox() -> None:
    """The kernel ends a process with its parent only if it was asked to before the parent ended."""
    script = "from lorarl_trainer.rewards.code.confinement import end_with_parent; end_with_parent({}); print('began')"
    for parent, began in ((os.getpid(), "began\n"), (os.getppid(), "")):
        ended = subprocess.run([sys.executable, "-c", script.format(parent)], capture_output=True, text=True)
        assert ended.stdout == began, ended
        assert ("ProcessLookupError" in ended.stderr) == (not began)


def test_a_sandbox_that_was_ended_is_named_and_replaced(sandbox: Sandbox) -> None:
    own = Sandbox(memory_bytes=MEMORY, require_landlock=True)
    own.start()
    os.kill(own.pid, signal.SIGKILL)
    with pytest.raises(BrokenError, match="the sandbox ended"):
        own.run("print(1)", None, "", 5.0)
    own.start()
    assert own.run("print(1)", None, "", 5.0).passed("1")
    own.close()
    own.close()
