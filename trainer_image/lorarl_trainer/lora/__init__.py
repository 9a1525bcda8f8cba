"""The adapter's files, names and target modules; nothing of one backend or engine."""
