"""The memory that an engine and its row service share."""
