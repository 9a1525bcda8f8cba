"""A service that speaks Tinker's API: the client owns the loop, and many adapters take turns in one trainer."""
