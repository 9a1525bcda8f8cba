"""What a schedule is: when its jobs start, how they are named, and what they continue from. Pure."""
