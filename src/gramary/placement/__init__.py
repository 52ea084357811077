"""Where a table's rows go: the grammar of placements, and pure planning."""
