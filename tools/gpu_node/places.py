"""Where a node that travelled is on the machine that it came to. env.sh names these places too."""

from __future__ import annotations

from pathlib import Path

PREFIX = Path("/opt/lorarl-node")
"""The unpacked node. The programs find their libraries by this name."""
PARTS = Path("/opt/lorarl-node.parts")
"""The parts as they arrive."""
IMAGES = PREFIX / "images"
PACKAGES = PREFIX / "packages"
"""Our own packages, copied from the checkout. Everyone may read them, because pods run as another user."""
