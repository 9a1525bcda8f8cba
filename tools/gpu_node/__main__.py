"""The command line of the node that travels, as root: `PYTHONPATH=tools:tests python -m gpu_node ...`.

docs/gpu-cluster.md walks through it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import yaml

from gpu_node import arrival, packing, stack
from node import lifecycle
from node.base_image import BaseImageError
from node.builds import BuildError
from node.errors import NodeError
from node.job_manifest import changed
from node.settings import REPOSITORY, Settings, from_environment
from support.cluster.processes import ToolMissingError


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu_node", description="A one-node Kubernetes that travels to a machine with GPUs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    pack = commands.add_parser("pack", help="here: pack the node into parts")
    pack.add_argument(
        "--out", type=Path, default=Path(os.environ.get("LORARL_GPU_NODE_OUT") or REPOSITORY / "out/gpu-node")
    )
    commands.add_parser(
        "up", help="there, after `. tools/gpu_node/env.sh`: bring up the node with KubeRay, lorarl and an S3 server"
    )
    manifest = commands.add_parser("manifest", help="there: print a manifest whose pods mount that machine's stack")
    manifest.add_argument("file", type=Path)
    commands.add_parser("down", help="there: remove every trace of the node, except what was unpacked")
    try:
        _run(parser.parse_args(arguments), from_environment())
    except (AssertionError, BaseImageError, BuildError, NodeError, ToolMissingError) as error:
        _say(str(error))
        return 1
    return 0


def _run(options: argparse.Namespace, settings: Settings) -> None:
    if options.command == "pack":
        started = time.monotonic()
        folders = packing.pack(settings, options.out, _say)
        _say(f"{packing.sizes(folders)}, in {options.out} after {time.monotonic() - started:.0f} s")
    elif options.command == "up":
        arrival.up(settings, stack.from_environment(settings.driver), _say)
        print(f"export KUBECONFIG={settings.kubeconfig}")
    elif options.command == "down":
        lifecycle.down(settings, _say, everything=True)
    else:
        job = yaml.safe_load(options.file.read_text())
        print(yaml.safe_dump(changed(job, stack.changes(stack.from_environment(settings.driver))), sort_keys=False))


def _say(text: str) -> None:
    print(f"gpu-node: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
