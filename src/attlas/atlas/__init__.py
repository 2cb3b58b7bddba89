"""The pages: every claim with its verdict and figure, guides, explorers and what they share."""
