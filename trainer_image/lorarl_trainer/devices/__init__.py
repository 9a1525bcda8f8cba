"""What differs between a CPU and a CUDA machine, behind one interface."""
