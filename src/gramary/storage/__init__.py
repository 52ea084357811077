"""A plan made memory, and the rows on their way into it."""
