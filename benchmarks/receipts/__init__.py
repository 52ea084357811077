"""Receipts: measured results, with all that is needed to repeat them."""
