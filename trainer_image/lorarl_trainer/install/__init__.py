"""How the trainer's packages get into an environment: `lorarl setup`, and `make setup` of a clone.

These files use the standard library only. They run before any package is there.
"""
