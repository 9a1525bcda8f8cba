"""lorarl from Python, for notebooks: `train`, `load`, and a `Client` for jobs in a cluster.

A job is the same manifest as of `lorarl run` and `kubectl apply`, with the same checks and messages. docs/python.md
has examples. Packages that only some calls need are imported by these calls.
"""

from __future__ import annotations

from importlib.util import find_spec

from lorarl_trainer.install.locks import NOT_INSTALLED

if find_spec("tenacity") is None:  # a package of the trainer, and of the extra `kubectl`, which is enough for a client
    raise ModuleNotFoundError(NOT_INSTALLED)

from lorarl.cluster import Client, ClusterJob
from lorarl.evaluation import Evaluation
from lorarl.run import Run, load
from lorarl.training import train
from lorarl_api.faults import ManifestError
from lorarl_trainer.errors import InputError, LorarlError

__all__ = [
    "Client",
    "ClusterJob",
    "Evaluation",
    "InputError",
    "LorarlError",
    "ManifestError",
    "Run",
    "load",
    "train",
]
