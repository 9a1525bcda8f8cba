"""Episodes of many turns with a class, tools or an agent of the user's: each in its own process."""
