"""What is run now and then from a clone: fetching real checkpoints, making reference arrays."""
