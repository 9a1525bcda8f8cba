"""The real hub client against a server on loopback that answers as the hub does."""

import ast
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from unit.trainer.storage.folder_on_disk import write_model

pytestmark = pytest.mark.slow

COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    files: dict[str, bytes]
    served: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if "org/gated" in path and self.headers.get("Authorization") != "Bearer right":
            self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif path.startswith(("/api/models/org/tiny/revision/", "/api/models/org/gated/revision/")):
            found = path.rpartition("/")[2] in ("main", "v1")
            self.answer(
                200 if found else 404,
                json.dumps({"id": "org/tiny", "sha": COMMIT}).encode(),
                {"X-Error-Code": "RevisionNotFound"},
            )
        elif path.endswith(f"/tree/{COMMIT}"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": f"{i:040}"}
                for i, (name, data) in enumerate(self.files.items())
            ]
            self.answer(200, json.dumps(tree).encode(), {})
        elif path.startswith(("/org/tiny/resolve/", "/org/gated/resolve/")):
            revision, _, name = path.partition("/resolve/")[2].partition("/")
            if revision not in (COMMIT, "main", "v1") or name not in self.files:
                unknown = "EntryNotFound" if revision == "main" else "RevisionNotFound"
                self.answer(404, b"", {"X-Error-Code": unknown, "X-Repo-Commit": COMMIT})
                return
            self.served.append(name)
            self.answer(
                200, self.files[name], {"X-Repo-Commit": COMMIT, "ETag": f'"{list(self.files).index(name):040}"'}
            )
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body)), "Content-Type": "application/json"}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, type[Hub]]]:
    model = write_model(tmp_path / "hub")
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    with serving_files(files | {"pytorch_model.bin": b"old", "original/params.json": b"{}"}) as served:
        yield served


@contextmanager
def serving_files(files: dict[str, bytes]) -> Iterator[tuple[str, type[Hub]]]:
    """A hub with these files in org/tiny, and in org/gated for those with the right token."""
    handler = type("TinyHub", (Hub,), {"files": files, "served": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


PROGRAM = """
import json, sys
from pathlib import Path
from lorarl_api.v1alpha1 import BaseModelSpec
from lorarl_trainer.errors import InputError, StorageError
from lorarl_trainer.storage.downloads import fetch_model, fetch_model_config
for uri, revision, secret in json.load(sys.stdin):
    try:
        model = BaseModelSpec(uri=uri, revision=revision)
        if sys.argv[1:] == ["config"]:
            print(json.dumps([fetch_model_config(model, secret=secret, open_folder=None)]))
        else:
            told = []
            folder = fetch_model(model, secret=secret, open_folder=None, on_bytes=lambda *of: told.append(of))
            for one in told:
                print(one, file=sys.stderr)
            print(json.dumps(sorted(path.name for path in folder.iterdir())))
    except InputError as error:
        print(json.dumps([error.field, error.got, error.hint]))
    except StorageError as error:
        print(json.dumps(["StorageError", str(error)]))
assert "torch" not in sys.modules
"""


def fetch(
    endpoint: str, cache: Path, *requests: tuple[str, str | None, dict[str, str]], config: bool = False
) -> list[list[str]]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *(["config"] if config else [])],
        input=json.dumps(requests),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (cache.parent / "told").write_text(ran.stderr)
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_a_model_of_the_hub_is_downloaded_once_by_revision(hub, tmp_path):
    """With the Secret's token, and without weights in other formats."""
    endpoint, handler = hub
    answers = fetch(
        endpoint,
        tmp_path / "cache",
        ("hf://org/tiny", None, {}),
        ("hf://org/tiny", "v1", {}),
        ("hf://org/gated", None, {"HF_TOKEN": "right"}),
    )
    assert answers == [["config.json", "model.safetensors", "tokenizer.json"]] * 3
    assert set(handler.served) == {"config.json", "model.safetensors", "tokenizer.json"}


def test_the_bytes_of_a_download_are_told(hub, tmp_path):
    endpoint, handler = hub
    handler.files["model.safetensors"] = b"w" * 20_000_000
    total = sum(len(handler.files[name]) for name in ("config.json", "model.safetensors", "tokenizer.json"))
    fetch(endpoint, tmp_path / "cache", ("hf://org/tiny", None, {}))
    told = [ast.literal_eval(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert told[0] == ("hf://org/tiny", 0, total)
    assert told[-1] == ("hf://org/tiny", total, total)
    fetch(endpoint, tmp_path / "cache", ("hf://org/tiny", None, {}))
    assert (tmp_path / "told").read_text().strip() == "", "nothing is missing"


def test_what_the_hub_refuses_is_named_with_the_field_and_the_mend(hub, tmp_path):
    revision, missing, gated, invalid = fetch(
        hub[0],
        tmp_path / "cache",
        ("hf://org/tiny", "v2", {}),
        ("hf://org/none", None, {}),
        ("hf://org/gated", None, {"HF_TOKEN": "wrong"}),
        ("hf://a/b/c", None, {}),
    )
    assert revision[0] == "spec.model.revision"
    assert "v2" in revision[1]
    for answer in (missing, gated):
        assert answer[0] == "spec.model.uri"
        assert "put HF_TOKEN into spec.model.credentialsSecret" in answer[2]
    assert invalid == ["spec.model.uri", "hf://a/b/c", "Fix spec.model.uri."]


def test_an_unreachable_hub_is_named_and_a_cached_model_needs_none(hub, tmp_path):
    nowhere = "http://127.0.0.1:9"  # the discard port: nothing listens
    ((reason, message),) = fetch(nowhere, tmp_path / "cache", ("hf://org/tiny", None, {}))
    assert reason == "StorageError", "another attempt may reach it, so the manifest is not to blame"
    assert "spec.model.uri: hf://org/tiny could not be downloaded" in message
    assert "name its folder with file:" in message
    fetch(hub[0], tmp_path / "cache", ("hf://org/tiny", None, {}))
    assert fetch(nowhere, tmp_path / "cache", ("hf://org/tiny", None, {})) == [
        ["config.json", "model.safetensors", "tokenizer.json"]
    ]


def test_only_the_configuration_is_downloaded_to_judge_a_model(hub, tmp_path):
    endpoint, handler = hub
    ((config,),) = fetch(endpoint, tmp_path / "cache", ("hf://org/tiny", None, {}), config=True)
    assert config == json.loads(handler.files["config.json"])
    assert set(handler.served) == {"config.json"}


def test_a_configuration_that_the_hub_does_not_have_is_explained(hub, tmp_path):
    endpoint, handler = hub
    del handler.files["config.json"]
    missing, revision, gated = fetch(
        endpoint,
        tmp_path / "cache",
        ("hf://org/tiny", None, {}),
        ("hf://org/tiny", "v2", {}),
        ("hf://org/gated", None, {"HF_TOKEN": "wrong"}),
        config=True,
    )
    assert missing[:2] == ["spec.model.uri", "hf://org/tiny, which has no config.json"]
    assert revision[0] == "spec.model.revision"
    assert "put HF_TOKEN into spec.model.credentialsSecret" in gated[2]


def test_a_dry_run_does_not_wait_for_a_hub_that_is_not_there(tmp_path: Path) -> None:
    """The hub's client would repeat its requests for half a minute."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        looked = subprocess.run(
            [sys.executable, "-c", LOOK],
            env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "http_proxy": "", "https_proxy": ""},
            capture_output=True,
            text=True,
            check=True,
        )
    seconds, *errors = looked.stdout.splitlines()
    assert float(seconds) < 10, looked
    assert [error.partition(": ")[0] for error in errors] == ["spec.model.uri", "spec.data.train.uri"]
    assert all(f"(127.0.0.1, port {endpoint.rpartition(':')[2]}: Connection refused)" in error for error in errors)


LOOK = """
import time
import datasets
from lorarl_api.v1alpha1 import BaseModelSpec
from lorarl_trainer.data.files import read_hub
from lorarl_trainer.errors import StorageError
from lorarl_trainer.storage.downloads import fetch_model_config
from lorarl_trainer.storage.retries import hasty_stores
began, errors = time.monotonic(), []
with hasty_stores():
    for look in (
        lambda: fetch_model_config(BaseModelSpec(uri="hf://org/tiny"), secret={}, open_folder=None),
        lambda: list(read_hub("org/rows", None, "train", field="spec.data.train", token=None)),
    ):
        try:
            look()
        except StorageError as error:
            errors.append(str(error))
print(time.monotonic() - began, *errors, sep="\\n")
"""
