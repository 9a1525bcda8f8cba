"""The parts of `profile_generation.py` and `bench_scheduler.py`. Import them after CUDA's environment is set up."""
