"""What the benchmarks work out is tested here; what they measure needs a GPU."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
