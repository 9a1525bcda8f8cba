"""The parts of the benchmark of several GPUs: `bench_scaling.py` runs its rows in turn."""
