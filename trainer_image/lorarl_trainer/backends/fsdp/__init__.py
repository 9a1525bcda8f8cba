"""Transformers' models with PEFT's adapters, and the base sharded over ranks by FSDP2 where it is not shared."""
