"""Figures of the latent posterior, drawn from stored evidence, by subject."""
