"""What a sweep is: its trials, which of them is the best, and which to stop. Pure, for operator and trainer."""
