"""The command `lorarl`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lorarl")
def main() -> None:
    """LoRA reinforcement learning: one manifest in, a PEFT adapter out."""


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def validate(files: tuple[Path, ...]) -> None:
    """Check manifests; print each fault as `path: got, expected, mend`; exit 1 if there is one."""
    from lorarl_api.validate import validate_files

    sys.exit(validate_files(files))


@main.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option(
    "--out",
    "out_dir",
    type=click.Path(path_type=Path),
    help="Folder for metrics, report and logs.  [default: out/NAME]",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a field: --set spec.trainer.steps=5. May be repeated.",
)
@click.option(
    "--in-cluster",
    is_flag=True,
    help="As the driver in a cluster's pods: progress goes to the job's status. The operator sets it.",
)
def run(manifest: Path, out_dir: Path | None, overrides: tuple[str, ...], in_cluster: bool) -> None:
    """Train the job of a manifest on this machine, without a cluster.

    Interrupt it (Ctrl-C, SIGTERM) and it publishes a checkpoint and exits with 75; the same command goes on from there.
    """
    from lorarl_trainer.launch.run import run_manifest

    sys.exit(run_manifest(manifest, out_dir, list(overrides), in_cluster))


@main.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.argument("uri")
@click.option(
    "--secret",
    metavar="NAME",
    help="Secret with the store's keys, as credentialsSecret names one.  [default: the environment]",
)
def upload(sources: tuple[Path, ...], uri: str, secret: str | None) -> None:
    """Copy files and folders, such as a base model, into the folder URI of a store, where a cluster's pods find them."""
    from lorarl_trainer.errors import LorarlError
    from lorarl_trainer.storage.upload import upload as upload_files

    try:
        for there in upload_files(sources, uri, secret):
            print(there)
    except LorarlError as error:
        sys.exit(f"lorarl: {error}")


@main.command()
def drain() -> None:
    """Announce the end of this pod: ask the trainer for a checkpoint and wait until it has ended. The pods' preStop hook."""
    from lorarl_trainer.pods.drain import drain as drain_pod

    drain_pod()


@main.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%SZ"]),
    envvar="LORARL_PURGE_UNTIL",
    help="UTC; what is not deleted by then stays.",
)
def purge(manifest: Path, until: datetime | None) -> None:
    """Delete every checkpoint and adapter of a manifest's job from its store."""
    from lorarl_api.faults import ManifestError
    from lorarl_api.load import load_job
    from lorarl_trainer.errors import LorarlError
    from lorarl_trainer.pods.purge import purge as purge_checkpoints

    try:
        print(f"deleted {purge_checkpoints(load_job(manifest), until and until.replace(tzinfo=UTC))}")
    except (LorarlError, ManifestError) as error:
        sys.exit(f"lorarl: {error}")


if __name__ == "__main__":
    main()
