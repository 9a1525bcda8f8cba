"""The files of a checkpoint, and how they are verified."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lorarl_trainer.checkpoint.identity import Identity
from lorarl_trainer.storage import Data
from lorarl_trainer.threads import in_parallel

ADAPTER = "lora_adapter"
ADAPTER_CONFIG = f"{ADAPTER}/adapter_config.json"
ADAPTER_MODEL = f"{ADAPTER}/adapter_model.safetensors"
ADAPTER_METADATA = f"{ADAPTER}/lorarl_metadata.json"
CARD = f"{ADAPTER}/README.md"
"""The model card. checkpoint.json does not list it: its results are completed after the step's evaluation."""
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("chat_template.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "tekken.json"),
)
"""Those of a base model that an adapter's folder holds too: tokenizer and chat template come with the adapter."""
STATE = "trainer_state/state.json"
_STATE_PART = re.compile(r"trainer_state/state(-\d+-of-\d+)?\.safetensors")
MANIFEST = "checkpoint.json"
STATE_FILE_BYTES = 125_000_000
"""Bytes of the state's tensors per file.

Several files are hashed and sent in parallel, a slow one can be sent again before the store's deadline, and S3 takes no
conditional write above 5 GiB. With its header a file stays below 128 MiB: page-locked memory comes in powers of two.
"""
HASH_THREADS = 4
_FILES = frozenset(
    [*(ADAPTER_CONFIG, ADAPTER_MODEL, ADAPTER_METADATA, CARD, STATE, MANIFEST)]
    + [f"{ADAPTER}/{name}" for name in TOKENIZER_FILES]
)
FOLDER_PATTERN = re.compile(r"iter_(\d{7,})(?:-[0-9a-f]{8})?")


@dataclass(frozen=True)
class Checkpoint:
    """The state after `step` steps. The keys of `files` are paths within the checkpoint's folder.

    Two checkpoints of the same training at the same step should have the same bytes, so keep times and host names out
    of the files.
    """

    step: int
    adapter_version: int
    files: Mapping[str, Data] = field(repr=False)
    card: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def adapter_config(self) -> dict[str, Any]:
        """The content of PEFT's adapter_config.json."""
        return dict(json.loads(bytes(self.files[ADAPTER_CONFIG])))

    @property
    def adapter_metadata(self) -> dict[str, Any]:
        """The content of lorarl_metadata.json."""
        return dict(json.loads(bytes(self.files[ADAPTER_METADATA])))

    @property
    def state_tensors(self) -> list[Data]:
        """The state's tensors: one or several safetensors files."""
        return [self.files[path] for path in sorted(self.files) if is_state_file(path)]

    @property
    def state(self) -> dict[str, Any]:
        """The training state apart from tensors: updates made, position in the data."""
        return dict(json.loads(bytes(self.files[STATE])))


def build_checkpoint(
    step: int,
    adapter_version: int,
    *,
    adapter_config: Mapping[str, Any],
    adapter_tensors: Data,
    metadata: Mapping[str, Any],
    state: Mapping[str, Any],
    state_tensors: Sequence[Data],
    tokenizer: Mapping[str, Data] | None = None,
    card: bytes | None = None,
) -> Checkpoint:
    """Make the files of a checkpoint.

    Tensors are given as safetensors files; the same arguments give the same bytes. `tokenizer` has files of the base
    model by name, and `card` is the model card: both go into the adapter's folder.
    """
    files = {
        ADAPTER_CONFIG: to_json(adapter_config),
        ADAPTER_MODEL: adapter_tensors,
        ADAPTER_METADATA: to_json(metadata),
        **{f"{ADAPTER}/{name}": data for name, data in (tokenizer or {}).items()},
        STATE: to_json(state),
        **{_state_part(number, len(state_tensors)): part for number, part in enumerate(state_tensors, 1)},
    }
    return Checkpoint(step, adapter_version, files, card)


@dataclass(frozen=True)
class Manifest:
    """checkpoint.json, written last into a checkpoint's folder: it describes the other files."""

    job: str
    step: int
    epoch: int
    adapter_version: int
    created_at: str
    identity: Identity
    files: Mapping[str, Mapping[str, Any]]
    """`size` in bytes and `sha256` in hexadecimal of each path."""
    kept_from: str | None = None
    """URI of the job's folder in the store, if the checkpoint could not be published there and was kept locally."""

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        job: str,
        epoch: int,
        created_at: str,
        identity: Identity,
        kept_from: str | None = None,
    ) -> Manifest:
        """Describe a checkpoint."""
        paths = sorted(checkpoint.files)
        digests = in_parallel(sha256, [checkpoint.files[path] for path in paths], HASH_THREADS)
        files = {
            path: {"size": len(checkpoint.files[path]), "sha256": digest}
            for path, digest in zip(paths, digests, strict=True)
        }
        return cls(job, checkpoint.step, epoch, checkpoint.adapter_version, created_at, identity, files, kept_from)

    @property
    def adapter_sha256(self) -> str:
        """The sha256 of adapter_model.safetensors."""
        return str(self.files.get(ADAPTER_MODEL, {}).get("sha256", ""))

    def same_contents(self, other: Manifest) -> bool:
        """Whether both describe the same files of the same training, regardless of who wrote them and when."""
        mine = (self.job, self.step, self.adapter_version, self.identity, self.files)
        return mine == (other.job, other.step, other.adapter_version, other.identity, other.files)

    def fault(self, path: str, data: Data | None) -> str | None:
        """Return what is wrong with one file, or None."""
        expected = self.files[path]
        if data is None:
            return f"{path} is missing"
        if len(data) != expected["size"]:
            return f"{path} has {len(data)} bytes instead of {expected['size']}"
        if sha256(data) != expected["sha256"]:
            return f"{path} has a sha256 other than the one in checkpoint.json"
        return None

    def to_bytes(self) -> bytes:
        """Return the file's content: JSON."""
        return to_json(
            {
                "job": self.job,
                "step": self.step,
                "epoch": self.epoch,
                "adapterVersion": self.adapter_version,
                "createdAt": self.created_at,
                "identity": dict(self.identity),
                "files": {path: dict(entry) for path, entry in self.files.items()},
                **({"keptFrom": self.kept_from} if self.kept_from else {}),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Parse the file's content. Raises ValueError if it is not a checkpoint.json."""
        try:
            raw = json.loads(data)
            files = {
                str(path): {"size": int(entry["size"]), "sha256": str(entry["sha256"])}
                for path, entry in raw["files"].items()
            }
            return cls(
                str(raw["job"]),
                int(raw["step"]),
                int(raw["epoch"]),
                int(raw["adapterVersion"]),
                str(raw["createdAt"]),
                dict(raw["identity"]),
                files,
                raw.get("keptFrom"),
            )
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError(f"not a checkpoint.json: {error!r}") from error


def folder_name(step: int, suffix: str = "") -> str:
    """Return a name such as iter_0000100. `suffix`: 8 hexadecimal digits, if that name is taken."""
    return f"iter_{step:07d}" + (f"-{suffix}" if suffix else "")


def step_of(folder: str) -> int | None:
    """Return the step of a checkpoint's folder; None for any other folder."""
    match = FOLDER_PATTERN.fullmatch(folder)
    return int(match.group(1)) if match else None


def is_checkpoint_file(path: str) -> bool:
    """Whether a checkpoint of lorarl may have a file of this path within its folder."""
    return path in _FILES or is_state_file(path)


def is_state_file(path: str) -> bool:
    """Whether a file of this path within a checkpoint's folder holds tensors of the training state."""
    return _STATE_PART.fullmatch(path) is not None


def _state_part(number: int, count: int) -> str:
    return (
        f"trainer_state/state-{number:05d}-of-{count:05d}.safetensors"
        if count > 1
        else "trainer_state/state.safetensors"
    )


def sha256(data: Data) -> str:
    """Return the sha256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def to_json(value: Mapping[str, Any]) -> bytes:
    """Return readable JSON: the same bytes for the same value."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()
