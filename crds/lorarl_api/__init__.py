"""The contract: `LoRARLJob` v1alpha1, its rules, and what is generated from them."""
