"""Attention as inference of a latent posterior from exchangeable tokens (Zhang et al. 2022)."""
