"""What a job needs of a GPU, and what a worker may do with it, decided before anything is loaded."""
