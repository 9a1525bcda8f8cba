"""What a base model is: its family, its shape, its stored weights. What a job costs is in `planning/`."""
