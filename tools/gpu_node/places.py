"""Where a node that travelled lies on the machine that it came to. env.sh names these places too."""

from __future__ import annotations

from pathlib import Path

PREFIX = Path("/opt/lorarl-node")
"""What was packed. The programs find their libraries by this name."""
PARTS = Path("/opt/lorarl-node.parts")
"""The parts as they come, one after the other."""
IMAGES = PREFIX / "images"
PACKAGES = PREFIX / "packages"
"""Our own packages, copied from the checkout, where anybody may read them: pods run as nobody in particular."""
