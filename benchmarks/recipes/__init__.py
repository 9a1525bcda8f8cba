"""The parts of the recipes: small tasks for a real model, on lorarl and on TRL. `bench_recipes.py` runs them."""
