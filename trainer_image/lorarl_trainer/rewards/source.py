"""Brings the code of reward functions and environments to this machine: `reward.source`, `environment.source`.

A run works with a copy. A ConfigMap that changes meanwhile changes no run.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from lorarl_api.v1alpha1 import REWARDS_FOLDER, EnvironmentSpec, LoRARLJobSpec, NamedReward, RewardSource, RewardSpec
from lorarl_trainer.errors import InputError, unreadable
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.downloads import local_path
from lorarl_trainer.storage.secrets import Secrets, secret_of

type Sources = Mapping[RewardSource, Path]
"""The folder with the files of each source, its wheels unpacked."""
NO_SOURCES: Sources = {}

MOST_BYTES = 1 << 30
"""A folder with more is hardly one with code."""
_FILES = (".py", ".whl")


@contextlib.contextmanager
def fetched_sources(spec: LoRARLJobSpec, secrets: Secrets) -> Iterator[tuple[LoRARLJobSpec, Sources]]:
    """Copy the sources of a job's rewards to this machine, until the block ends.

    A ConfigMap that is mounted nowhere is left out: outside a cluster the function is beside the manifest.

    Yields:
        The spec, whose sources have the sha256 of what was found, and their folders.

    Raises:
        InputError: there is no such file, it has another sha256, or a wheel cannot be used here.
        StorageError: a store does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="lorarl-rewards-") as scratch:
        found: dict[RewardSource, RewardSource] = {}
        sources: dict[RewardSource, Path] = {}
        for field, source in spec.reward_sources.items():
            if source in found or (source.config_map and not _mounted(source).is_dir()):
                continue
            folder = Path(scratch) / str(len(found))
            _copy(source, field, secrets, folder)
            digest = _digest(folder)
            if source.sha256 not in (None, digest):
                got, hint = f"{source.sha256}, but {source} has {digest}", "Bring back those files, or correct sha256."
                raise InputError(f"{field}.sha256", got, "the SHA-256 of the files", hint)
            for wheel in sorted(folder.rglob("*.whl")):
                _unpack(wheel, folder, source, field)
            found[source] = source.model_copy(update={"sha256": digest})
            sources[found[source]] = folder
        yield with_digests(spec, found), sources


def with_digests(spec: LoRARLJobSpec, found: Mapping[RewardSource, RewardSource]) -> LoRARLJobSpec:
    """Return the spec with other sources in place of those that are keys of `found`."""

    def of[R: (RewardSpec, NamedReward, EnvironmentSpec)](reward: R) -> R:
        source = reward.source and found.get(reward.source)
        return reward.model_copy(update={"source": source}) if source else reward

    if found and spec.environment:
        spec = spec.model_copy(update={"environment": of(spec.environment)})
    return with_rewards(spec, of) if found else spec


class Change(Protocol):
    """Changes fields of a reward, of the job or of an evaluation."""

    def __call__[R: (RewardSpec, NamedReward)](self, reward: R) -> R:
        """Return the reward with other fields."""


def with_rewards(spec: LoRARLJobSpec, change: Change) -> LoRARLJobSpec:
    """Return the spec with each of its rewards changed."""
    evals = [
        each.model_copy(update={"reward": change(each.reward)}) if each.reward else each for each in spec.data.evals
    ]
    update: dict[str, object] = {"data": spec.data.model_copy(update={"evals": evals})}
    if spec.reward:
        update["reward"] = change(spec.reward)
    if spec.rewards:
        update["rewards"] = [change(reward) for reward in spec.rewards]
    return spec.model_copy(update=update)


def _mounted(source: RewardSource) -> Path:
    return Path(REWARDS_FOLDER) / str(source.config_map)


def _copy(source: RewardSource, field: str, secrets: Secrets, folder: Path) -> None:
    """Copy the files of a source into `folder`."""
    if source.config_map:
        _copy_local(_mounted(source), folder, f"{field}.configMap", source)
    elif str(source.uri).startswith(("file:", "pvc:")):
        _copy_local(local_path(str(source.uri), f"{field}.uri"), folder, f"{field}.uri", source)
    else:
        _download(source, f"{field}.uri", secrets, folder)


def _copy_local(path: Path, folder: Path, field: str, source: RewardSource) -> None:
    # A mounted ConfigMap has its files twice: behind links, and in folders that begin with two dots.
    files = sorted(path.iterdir() if source.config_map else path.rglob("*")) if path.is_dir() else [path]
    files = [file for file in files if file.is_file() and "__pycache__" not in file.parts]
    _require_some(sum(file.stat().st_size for file in files), len(files), field, source)
    for file in files:
        target = folder / (file.relative_to(path) if path.is_dir() else file.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(file, target)
        except OSError as error:
            raise unreadable(field, str(source), file, error) from error


def _download(source: RewardSource, field: str, secrets: Secrets, folder: Path) -> None:
    uri, secret = str(source.uri), secret_of(secrets, source.credentials_secret)
    single = uri.endswith(_FILES)
    store = open_store(uri.rpartition("/")[0] if single else uri, secret, field=field)
    one = store.find(uri.rpartition("/")[2]) if single else None
    entries = ([one] if one else []) if single else store.entries()
    _require_some(sum(entry.size for entry in entries), len(entries), field, source)
    for entry in entries:
        store.download_file(entry.path, folder / entry.path)


def _require_some(size: int, number: int, field: str, source: RewardSource) -> None:
    if not number:
        hint = "Upload it with `lorarl upload`, or correct the URI." if source.uri else "Add a key such as rewards.py."
        got = f"{source}, where there is nothing" if source.uri else f"{source}, which is empty"
        raise InputError(field, got, "a Python file, a wheel, or a folder with such files", hint)
    if size > MOST_BYTES:
        hint = "Name a folder with the reward's code alone."
        raise InputError(field, f"{source} with {size:,} bytes", f"at most {MOST_BYTES:,} bytes", hint)


def _digest(folder: Path) -> str:
    """Return the SHA-256 of the only file; of several, that of `sha256sum`'s lines in the order of their names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    if len(digests) == 1:
        return next(iter(digests.values()))
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _unpack(wheel: Path, folder: Path, source: RewardSource, field: str) -> None:
    """Unpack a wheel into `folder`. Raises InputError if it is no wheel, or one for another Python or machine."""
    path = f"{field}.{'configMap' if source.config_map else 'uri'}"
    expected = "wheels for this Python"
    try:
        tags = parse_wheel_filename(wheel.name)[3]
        if not tags.intersection(sys_tags()):
            hint = "Fetch one for it: pip download --only-binary=:all: --python-version 3.12 PACKAGE."
            raise InputError(path, f"{wheel.name} in {source}, a wheel for another Python or machine", expected, hint)
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
    except (InvalidWheelFilename, zipfile.BadZipFile) as error:
        hint = "Build it again, and keep its name: pip wheel --no-deps ."
        raise InputError(path, f"{wheel.name} in {source}, which is no wheel ({error})", expected, hint) from error
    wheel.unlink()
