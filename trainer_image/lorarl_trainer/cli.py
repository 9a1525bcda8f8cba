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
@click.option(
    "--gpu-memory",
    type=click.FloatRange(min=1),
    metavar="GB",
    help="Memory of each GPU that the jobs will get.  [default: that of the GPUs here]",
)
def validate(files: tuple[Path, ...], gpu_memory: float | None) -> None:
    """Check manifests without running them, and the base models that are on this machine.

    Each error is printed as `path: got, expected. Hint.` The exit code is 1 if there are errors.
    """
    from lorarl_api.validate import validate_files
    from lorarl_trainer.launch.local_model import judge_local_model

    sys.exit(validate_files(files, lambda job: judge_local_model(job, gpu_memory)))


@main.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option(
    "--out",
    "out_dir",
    type=click.Path(path_type=Path),
    help="Folder for metrics, the report and logs.  [default: out/NAME]",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Override a field, for example --set spec.trainer.steps=5. Can be repeated.",
)
@click.option(
    "--in-cluster",
    is_flag=True,
    help="Run as the driver in a cluster and write progress to the job's status. Set by the operator.",
)
def run(manifest: Path, out_dir: Path | None, overrides: tuple[str, ...], in_cluster: bool) -> None:
    """Run a manifest's job on this machine, without a cluster.

    On Ctrl-C or SIGTERM it publishes a checkpoint and exits with code 75. Run the same command again to resume.
    """
    from lorarl_trainer.launch.run import run_manifest

    sys.exit(run_manifest(manifest, out_dir, list(overrides), in_cluster))


@main.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.argument("uri")
@click.option(
    "--secret",
    metavar="NAME",
    help="Secret with the store's keys, as in credentialsSecret of a manifest.  [default: keys in the environment]",
)
def upload(sources: tuple[Path, ...], uri: str, secret: str | None) -> None:
    """Upload files and folders, such as a base model, to URI.

    URI is a folder in a store that the cluster's pods can read.
    """
    from lorarl_trainer.errors import LorarlError
    from lorarl_trainer.storage.upload import upload as upload_files

    try:
        for uploaded in upload_files(sources, uri, secret):
            print(uploaded)
    except LorarlError as error:
        sys.exit(f"lorarl: {error}")


@main.command()
def drain() -> None:
    """Prepare this pod for termination (preStop hook).

    Ask the trainer for a checkpoint and wait until it has exited.
    """
    from lorarl_trainer.pods.drain import drain as drain_pod

    drain_pod()


@main.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%SZ"]),
    envvar="LORARL_PURGE_UNTIL",
    help="Stop deleting at this time (UTC) and keep what is left.",
)
def purge(manifest: Path, until: datetime | None) -> None:
    """Delete all checkpoints and adapters of a manifest's job from its store."""
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
