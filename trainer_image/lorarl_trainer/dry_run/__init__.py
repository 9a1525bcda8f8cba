"""`lorarl run --dry-run`: what a run would do, shown before anything trains."""
