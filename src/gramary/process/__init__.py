"""This process: its end, its forked children, and what cannot leave it."""
