"""Kubernetes' quantities, such as 512Mi, 1500m and 2e3."""

from __future__ import annotations

import re

_QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:e([0-9]+)|([munkMGTPE]?i?))?", re.IGNORECASE)
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def quantity(text: str) -> float | None:
    """The number that a quantity stands for; None if the text is not a quantity."""
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        return None
    number, exponent, suffix = found[1], found[2], found[3] or ""
    try:
        value = float(number)
    except ValueError:
        return None
    if exponent:
        return value * 10.0 ** min(int(exponent), 30)
    if suffix in _BINARY:
        return value * 1024.0 ** _BINARY[suffix]
    return value * 1000.0 ** _DECIMAL[suffix] if suffix in _DECIMAL else None
