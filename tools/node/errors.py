"""What can go wrong with a node. The text tells its user what, why, and what to do."""

from __future__ import annotations


class NodeError(Exception):
    """The node cannot be brought up, taken down or used."""


class SettingsError(NodeError):
    """An environment variable has an invalid value."""


class NotReadyError(NodeError):
    """The machine lacks something that a node needs. Nothing was started."""
