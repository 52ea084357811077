"""Plain-torch truth of every operation: obvious rather than fast."""
