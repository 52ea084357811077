"""CPU backends of the operations."""
