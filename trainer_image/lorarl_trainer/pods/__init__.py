"""What is different in the pods of a cluster: progress goes to the job's status, a pod's end is announced, and steps may change."""
