"""`lorarl serve RUN`: from the name of a run to a server that answers, and its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from lorarl_trainer.devices.host_memory import host_memory
from lorarl_trainer.devices.nvidia_smi import largest_gpu
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.launch.local import only_run_in
from lorarl_trainer.launch.server_process import API_KEY
from lorarl_trainer.loading import ask_server
from lorarl_trainer.servers.faults import ServerError
from lorarl_trainer.servers.hosts import require_key
from lorarl_trainer.storage.base_model import base_model_name
from lorarl_trainer.storage.downloads import WEIGHTS
from lorarl_trainer.trained_adapters.own_tokenizer import own_template
from lorarl_trainer.trained_adapters.serving.check import Check
from lorarl_trainer.trained_adapters.serving.lineup import COPIES, Lineup, Say, names_file
from lorarl_trainer.trained_adapters.serving.own_server import OwnServer, Settings, cpu_cache_bytes
from lorarl_trainer.trained_adapters.serving.recorded import recorded_samples
from lorarl_trainer.trained_adapters.serving.subject import Request, Subject, find_subject, published, terms_of
from lorarl_trainer.trained_adapters.serving.versions import Version
from lorarl_trainer.trained_adapters.source import Source

OUT = Path("out/serve")
"""A service has its log and copies of adapters in the folder of its name here."""
LOG = "vllm.log"
_ROUND_SECONDS = 1.0
"""Between two looks at a job's folder: one small read each."""
_START_ROUND_SECONDS = 0.2


class _AskedToEnd(Exception):  # noqa: N818
    """Ctrl-C came while the server was starting."""


def serve(request: Request, print_line: Callable[[str], None]) -> None:
    """Serve a run's adapters until Ctrl-C or SIGTERM.

    Args:
        request: what the user asks for.
        print_line: takes lines for the user.

    Raises:
        LorarlError: nothing can be served, or the server ended by itself.
        ManifestError: the manifest has faults.
    """

    def say(word: str, line: str) -> None:
        print_line(f"{word:<9} {line}")

    hint = f"Set {API_KEY} to a long random text, which clients send as a bearer token."
    require_key(request.host, os.environ.get(API_KEY), API_KEY, hint)
    with _ctrl_c() as asked:
        if not published(request.name):
            say("waiting", f"{request.name} has published no adapter yet")
            while not published(request.name):
                if asked.wait(_ROUND_SECONDS):
                    return
        subject = find_subject(request)
        folder = request.out or OUT / subject.name
        with only_run_in(folder):
            shutil.rmtree(folder / COPIES, ignore_errors=True)
            _serve(request, subject, folder, asked, say)


def _serve(request: Request, subject: Subject, folder: Path, asked: threading.Event, say: Say) -> None:
    source = subject.source
    on_gpu = largest_gpu() is not None
    check = Check(source, recorded_samples(subject.run), terms_of(source, on_gpu=on_gpu), base_name(source))
    log, port = folder / LOG, free_port(request.host, request.port)
    settings = Settings(
        model=source.base,
        served=check.base,
        revision=source.revision,
        dtype=_dtype(source, on_gpu=on_gpu),
        rank=check.terms.rank,
        adapters=request.versions + 2,  # one that is being checked, and one that is leaving
        host=request.host,
        port=port,
        on_gpu=on_gpu,
        cache_bytes=None if on_gpu else cpu_cache_bytes(_weights(source), host_memory().free),
        template=_template_file(source, folder),
        template_arguments=source.job.spec.data.chat_template_arguments if source.job else None,
        more=request.more,
    )
    server = OwnServer(settings, log, names_file(folder))

    def join(version: Version, name: str) -> str:
        check.require_fit(version)
        if server.start():
            say("starting", f"vLLM's server; what it prints is in {log}")
        recorded = check.measure(version)  # while the server starts
        while not server.answers():
            if asked.wait(_START_ROUND_SECONDS):
                raise _AskedToEnd
        return check.load(server, name, version, recorded)

    lineup = Lineup(subject.name, folder, join, server.unload, say)
    try:
        _first(lineup, subject, request)
        base = f", and {check.base}" if on_gpu else ""
        say("ready", f"{server.url}/v1 serves {subject.name}, which is {lineup.main}{base}; Ctrl-C ends it")
        key = API_KEY if os.environ.get(API_KEY) else None
        say(
            "ask",
            ask_server(subject.name, chat=source.chats and settings.template is not None, url=server.url, key=key),
        )
        while not asked.wait(_ROUND_SECONDS):
            server.must_run()
            if subject.home is not None:
                lineup.follow(subject.home, request.choice, request.versions)
    except _AskedToEnd:
        pass
    except ServerError as error:
        server.must_run()  # usually it ended, and says why
        raise LorarlError(str(error)) from error
    finally:
        server.end()
        shutil.rmtree(folder / COPIES, ignore_errors=True)
    say("ended", "the server")


def _first(lineup: Lineup, subject: Subject, request: Request) -> None:
    """Serve what the run's name means.

    Raises:
        LorarlError: it cannot be served.
    """
    if subject.home is None:
        lineup.serve(subject.alone())
    else:
        lineup.follow(subject.home, request.choice, 1)
    if lineup.main is None:
        raise LorarlError(f"{subject.name}: nothing is served. {lineup.reasons}")


def base_name(source: Source) -> str:
    """Return what requests call the base model: the hub's name, or the folder."""
    return base_model_name(source.job.spec) if source.job else source.base


def _dtype(source: Source, *, on_gpu: bool) -> str:
    """Return the precision of the job; without one that of transformers here, so that both compute the same."""
    precision = source.job.spec.precision if source.job else "bf16" if on_gpu else "fp32"
    return {"fp32": "float32", "bf16": "bfloat16"}[precision]


def _weights(source: Source) -> int:
    """Return the bytes of the base model's weights."""
    return sum(file.stat().st_size for file in source.base_folder().glob(WEIGHTS))


def _template_file(source: Source, folder: Path) -> Path | None:
    """Write the chat template that the adapter was trained with; None if it has none."""
    template = own_template(source)
    if not isinstance(template, str):
        return None
    file = folder / "chat_template.jinja"
    file.write_text(template, encoding="utf-8")
    return file


def free_port(host: str, port: int) -> int:
    """Return the port, or a free one for 0.

    Raises:
        LorarlError: it cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier server's connections do not matter
        try:
            probe.bind((host, port))
        except OSError as error:
            raise LorarlError(f"--host {host} --port {port}: {error.strerror}. Name another port, or 0.") from error
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """Set an event at the first Ctrl-C or SIGTERM, for an orderly end; the second Ctrl-C interrupts."""
    asked = threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
