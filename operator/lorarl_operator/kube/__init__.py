"""The edge towards the API server: requests as raw JSON, and the lease that says who may write."""
