"""What can go wrong with a node, told to its user: the text says what, why, and what to do."""

from __future__ import annotations


class NodeError(Exception):
    """The node cannot be brought up, taken down or used so."""


class SettingsError(NodeError):
    """An environment variable has a value that is not understood."""


class NotReadyError(NodeError):
    """The machine lacks something that a node needs; nothing was begun."""
