"""Benchmarks of gramary; each module measures one thing and writes one receipt."""
