"""GPU kernels, each with its plain PyTorch twin and one dispatcher."""
