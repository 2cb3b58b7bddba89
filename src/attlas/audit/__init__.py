"""The maps' quantities on real checkpoints, which are read without torch and run in JAX."""
