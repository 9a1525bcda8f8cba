"""The command line of the node, as root: `PYTHONPATH=tools:tests python -m node ...`, which `make cluster` calls."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from node import lifecycle, programs
from node.errors import NodeError
from node.node import Node
from node.settings import Settings, from_environment


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m node", description="A one-node Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="say whether this machine can have a node, and what it lacks")
    commands.add_parser("up", help="bring the node up")
    commands.add_parser("builder", help="bring up only containerd and BuildKit, to build images")
    down = commands.add_parser("down", help="remove every trace of the node")
    down.add_argument("--all", action="store_true", help="also images and build cache")
    commands.add_parser("status", help="say which programs run")
    for name, text in (("start", "start programs that were stopped"), ("stop", "stop some of the node's programs")):
        one = commands.add_parser(name, help=text)
        one.add_argument("programs", nargs="+", choices=programs.ALL)
    enter = commands.add_parser("enter", help="run a command in the node's namespaces")
    enter.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args(arguments)
    try:
        return _run(options, from_environment())
    except NodeError as error:
        _say(str(error))
        return 1


def _run(options: argparse.Namespace, settings: Settings) -> int:
    if options.command == "check":
        lifecycle.check(settings, _say)
        _say("this machine can have a node")
    elif options.command == "up":
        lifecycle.up(settings, _say)
        _say(f"logs are in {settings.logs}")
        print(f"export KUBECONFIG={settings.kubeconfig}")
    elif options.command == "builder":
        print(f"export BUILDKIT_HOST=unix://{lifecycle.builder(settings, _say).buildkit_socket}")
    elif options.command == "down":
        lifecycle.down(settings, _say, everything=options.all)
    elif options.command == "enter":
        return _enter(settings, options.words)
    else:
        _change(Node(settings), options)
    return 0


def _change(node: Node, options: argparse.Namespace) -> None:
    if options.command == "start":
        node.start(*options.programs)
    elif options.command == "stop":
        for name in options.programs:
            node.stop(name)
    running = node.running()
    for name in node.programs:
        print(f"{name:24} {running.get(name, 'not running')}")


def _enter(settings: Settings, words: list[str]) -> int:
    init = Node(settings).must_be_there()
    return subprocess.run(init.enter(words or [os.environ.get("SHELL", "sh")]), check=False).returncode


def _say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
