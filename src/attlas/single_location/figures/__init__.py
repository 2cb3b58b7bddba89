"""Figures of single-location regression by subject, each drawn from the evidence of its claim."""
