"""Figures of sparse variables, drawn from stored evidence, by subject."""
