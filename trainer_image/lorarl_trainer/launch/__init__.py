"""From a manifest to a session, and the end of a run."""
