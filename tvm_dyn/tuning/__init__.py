"""Tuning: measure candidates of symbolic backbones once for all shapes, keep what was measured, choose variants."""
