"""From what the user names, a job or a URI, to the job's status and its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lorarl_trainer.cli.kubectl.api import Kubectl
from lorarl_trainer.errors import InputError

if TYPE_CHECKING:
    from lorarl_trainer.record.reader import JobRecord, RunHistory

record = click.option(
    "--record", "uri", metavar="URI", help="Read this job's folder in a store instead of asking a cluster."
)
run = click.option("--run", "number", metavar="NUMBER", help="Which run of the job, such as 2.  [default: the newest]")


def cluster_flags[F: Callable[..., Any]](command: F) -> F:
    """Add the options that say which cluster and namespace. They are those of kubectl."""
    for option in (
        click.option("--kubeconfig", metavar="FILE", help="As of kubectl."),
        click.option("--context", metavar="NAME", help="As of kubectl."),
        click.option("-n", "--namespace", metavar="NAME", help="As of kubectl."),
    ):
        command = option(command)
    return command


def kubectl(namespace: str | None, context: str | None, kubeconfig: str | None, *more: str) -> Kubectl:
    """Return kubectl with the user's options."""
    given = {"namespace": namespace, "context": context, "kubeconfig": kubeconfig}
    return Kubectl((*(f"--{name}={value}" for name, value in given.items() if value), *more))


@dataclass(frozen=True)
class Source:
    """A job that the user named.

    Attributes:
        job: the LoRARLJob; None if the user named its record alone.
        record: what is in the store.
    """

    name: str
    job: dict[str, Any] | None
    record: JobRecord


def find_source(name: str | None, uri: str | None, api: Kubectl) -> Source:
    """Return a job's status and record.

    `uri`: of its record. If it is given, no cluster is asked.

    Raises:
        LorarlError: the job cannot be read, or its store cannot be used.
    """
    from lorarl_trainer.record.reader import JobRecord, split_uri
    from lorarl_trainer.storage import LocalStore, open_store

    if uri is not None:
        store_uri, job_name = split_uri(uri)
        return Source(job_name, None, JobRecord(open_store(store_uri, field="--record"), job_name))
    if name is None:
        raise InputError("JOB", "none", "a job's name, or --record URI", "`kubectl get lrj` lists the jobs.")
    job = api.job(name)
    checkpoint = job["spec"]["checkpoint"]
    store = open_store(checkpoint["uri"], _secret(checkpoint.get("credentialsSecret"), api), field="checkpoint.uri")
    if isinstance(store, LocalStore) and not store.root.exists():
        got = f"{checkpoint['uri']}, which only pods can read"
        hint = "Mount that volume here, and name the job's folder in it: --record file:///mnt/adapters/NAME."
        raise InputError("spec.checkpoint.uri", got, "an object store", hint)
    return Source(name, job, JobRecord(store, name))


def one_run(history: list[RunHistory], number: str | None) -> RunHistory:
    """Return the run that the user chose. Raises InputError if there is no such run."""
    if number is None:
        return history[-1]
    found = next((run for run in history if run.name.lstrip("0") == number.lstrip("0")), None)
    if found is None:
        raise InputError("--run", number, f"one of {', '.join(run.name for run in history)}", "Choose one of these.")
    return found


def _secret(name: str | None, api: Kubectl) -> dict[str, str]:
    """Return the store's keys: those on this machine, else the cluster's. Without any, the environment's are used."""
    from lorarl_trainer.storage.secrets import read_secret, secrets_dir

    if name is None:
        return {}
    return read_secret(name) if Path(secrets_dir() / name).is_dir() else api.secret(name)
