"""The parts of `profile_generation.py`. Import them after the environment of CUDA is set up."""
