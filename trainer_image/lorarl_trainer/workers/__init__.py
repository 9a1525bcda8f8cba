"""Worker processes: one per device, each with a backend and an engine."""
