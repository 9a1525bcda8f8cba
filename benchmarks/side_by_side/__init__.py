"""The parts of the GPU benchmark: `bench_gpu.py` runs them, each system in a process of its own."""
