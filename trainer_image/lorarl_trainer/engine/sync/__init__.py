"""How a new adapter reaches the engine."""
