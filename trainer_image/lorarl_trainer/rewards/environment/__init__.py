"""Episodes of many turns with a class of the user's: each in its own process."""
