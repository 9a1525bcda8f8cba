"""A store that is a folder: copies real files, and tells in a log what it copied."""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from lorarl_trainer.storage.base import Entry


class FolderOnDisk:
    def __init__(self, root: Path, wait_before: str | None = None) -> None:
        """Before it copies `wait_before`, the store waits until there is a file `go` beside its folder."""
        self.root, self.wait_before = root, wait_before

    def entries(self, prefix: str = "") -> list[Entry]:
        return [self._file(path) for path in sorted((self.root / prefix).rglob("*")) if path.is_file()]

    def find(self, path: str) -> Entry | None:
        return self._file(self.root / path) if (self.root / path).is_file() else None

    def download_file(self, path: str, target: Path, arrived: Callable[[int], None] = lambda _: None) -> None:
        if path == self.wait_before:
            target.write_bytes(b"half")
            (self.root.parent / "waiting").touch()
            while not (self.root.parent / "go").exists():
                time.sleep(0.005)
        shutil.copyfile(self.root / path, target)
        arrived(target.stat().st_size)
        with (self.root.parent / "log").open("a") as log:
            log.write(f"{path}\n")

    def downloads(self) -> list[str]:
        log = self.root.parent / "log"
        return log.read_text().split() if log.exists() else []

    def open(self, uri: str, secret: Mapping[str, str]) -> "FolderOnDisk":
        return self

    def _file(self, path: Path) -> Entry:
        status = path.stat()
        return Entry(str(path.relative_to(self.root)), status.st_size, str(status.st_mtime_ns), status.st_mtime)


def write_model(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "model.safetensors").write_bytes(b"w" * 10_000)
    (folder / "tokenizer.json").write_text("{}")
    return folder
