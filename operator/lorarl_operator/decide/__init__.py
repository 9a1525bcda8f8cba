"""What the operator does and why: pure functions of what it has seen. Start in `decide.py`."""
