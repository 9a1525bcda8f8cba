"""The whole mission on GPUs: `kubectl apply`, pods that hold GPUs, an adapter in the store."""
