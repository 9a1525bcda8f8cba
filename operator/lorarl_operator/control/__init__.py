"""How the operator sees the cluster and acts on it: watches, work queue, leadership. All of its I/O but the HTTP."""
