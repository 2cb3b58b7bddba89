"""The maps' quantities, measured on a real transformer: checkpoints are read without torch, run in JAX, and described on a page."""
