"""What a job needs of a GPU, and how its workers run it: decided before anything loads."""
