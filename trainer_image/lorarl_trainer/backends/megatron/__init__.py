"""The trainer's side: a Megatron model with LoRA adapters, its optimizer, and its state in Hugging Face names."""
