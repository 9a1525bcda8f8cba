"""The parts of the GPU benchmark. `bench_gpu.py` runs each system in its own process."""
