"""Rows in files: how they lie there, and reading them in order."""
