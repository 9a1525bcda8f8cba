"""Writes YAML that Kubernetes and `yaml_reader` read as what it was."""

from __future__ import annotations

import math
from typing import Any

import yaml

from lorarl_api.yaml_reader import TAG, add_resolvers


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes more texts: y, 09 and 1e5 are no texts for Kubernetes, but are for PyYAML."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Return the node of a text. In single quotes, PyYAML writes U+0085 so that it is lost."""
    return dumper.represent_scalar(f"{TAG}str", text, style='"' if "\x85" in text else None)


add_resolvers(_Dumper)
_Dumper.add_representer(str, _text)
for _other in (bytes, set):  # YAML has tags for them, and JSON nothing
    _Dumper.add_representer(_other, yaml.SafeDumper.represent_undefined)


def to_yaml(value: Any, *, flow: bool = False) -> str:
    """Return a value as YAML: in block style, or in flow style on one line without its end.

    Raises:
        yaml.YAMLError: YAML has no such value.
    """
    style: dict[str, Any] = {"default_flow_style": flow, "sort_keys": False, "width": math.inf, "allow_unicode": True}
    text: str = yaml.dump(value, Dumper=_Dumper, **style)
    return text.removesuffix("...\n").rstrip("\n") if flow else text
