"""Tiers: how a model runs before, and without, compiled kernels."""
