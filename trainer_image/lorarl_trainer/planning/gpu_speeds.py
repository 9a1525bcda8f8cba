"""How fast GPUs are, by the name that the driver gives: from their data sheets, and as far as a step reaches that.

A data sheet's peaks are not reached. On an H200, a large bf16 matrix product runs at 793 of 989 TFLOP/s, and a copy at
4.3 of 4.8 TB/s (docs/performance.md). The same shares are taken for the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PRODUCT_SHARE, _COPY_SHARE, _LINK_SHARE = 793 / 989, 4.3 / 4.8, 0.75


@dataclass(frozen=True)
class Speed:
    """A GPU's peaks on its data sheet.

    Attributes:
        tflops: bf16 matrix products with sums in fp32, without sparsity, in TFLOP/s.
        link: to another GPU of its machine, in each direction, in TB/s.
    """

    tflops: float
    terabytes: float
    link: float

    @property
    def operations(self) -> float:
        """Floating-point operations per second of a large product."""
        return self.tflops * 1e12 * _PRODUCT_SHARE

    @property
    def bandwidth(self) -> float:
        """Bytes per second that a copy reads and writes."""
        return self.terabytes * 1e12 * _COPY_SHARE

    @property
    def link_bandwidth(self) -> float:
        """Bytes per second to another GPU. The share is an allowance."""
        return self.link * 1e12 * _LINK_SHARE


_PCIE4, _PCIE5 = 0.032, 0.064
_SPEEDS = {
    "B200": Speed(2250, 8.0, 0.9),
    "H200": Speed(989, 4.8, 0.45),
    "H200 NVL": Speed(835, 4.8, 0.45),
    "H100": Speed(989, 3.35, 0.45),
    "H100 PCIe": Speed(756, 2.0, _PCIE5),
    "H100 NVL": Speed(835, 3.9, 0.3),
    "H20": Speed(148, 4.0, 0.45),
    "A100": Speed(312, 2.0, 0.3),
    "A100 PCIe": Speed(312, 1.9, _PCIE4),
    "A100 PCIE": Speed(312, 1.55, _PCIE4),
    "A30": Speed(165, 0.93, _PCIE4),
    "A40": Speed(150, 0.7, _PCIE4),
    "A10": Speed(125, 0.6, _PCIE4),
    "A10G": Speed(70, 0.6, _PCIE4),
    "L40S": Speed(362, 0.86, _PCIE4),
    "L40": Speed(181, 0.86, _PCIE4),
    "L4": Speed(121, 0.3, _PCIE4),
    "RTX 6000 Ada": Speed(364, 0.96, _PCIE4),
    "RTX A6000": Speed(155, 0.77, _PCIE4),
    "RTX 4090": Speed(165, 1.0, _PCIE4),
    "RTX 3090": Speed(71, 0.94, _PCIE4),
}
"""NVIDIA's data sheets, by the words of a name that tell one product from the others."""
UNKNOWN = _SPEEDS["A100"]
"""For other GPUs. Choices hang on how a GPU's peaks compare, in which an A100 is between the others."""


def speed_of(name: str) -> Speed:
    """Return the speed of the GPU that its driver calls so; `UNKNOWN` for one that is not in the table."""
    product = _product(name)
    return _SPEEDS[product] if product else UNKNOWN


def is_known(name: str) -> bool:
    """Return whether the table has the GPU that its driver calls so."""
    return _product(name) is not None


def _product(name: str) -> str | None:
    words = set(re.split(r"[ -]", name))
    known = [product for product in _SPEEDS if words.issuperset(product.split())]
    # "H100" is in the name of every H100, so the one with the most words is meant.
    return max(known, key=len, default=None)
