"""Ratios of speed, measured side by side (`python -m bench`)."""
