"""What is replaced inside vLLM."""
