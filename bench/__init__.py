"""Ratios of speed, measured side by side (`python -m bench`), and every claim on many seeds
(`python -m bench.soak`)."""
