"""The seams: what the loop asks of its parts. A protocol is here once a second implementation exists."""
