"""What differs in a cluster's pods: progress goes to the job's status, pods announce their end, steps may change."""
