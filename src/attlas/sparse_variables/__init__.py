"""Sparse variables: a head with bounded norms computes a function of a few of many bits (Edelman et al. 2022)."""
