"""A table in a model's files: found in a Hugging Face folder and checked from headers alone."""

from gramary.files.checkpoint.finding import describe_tables, find_checkpoints, open_checkpoint

__all__ = ["describe_tables", "find_checkpoints", "open_checkpoint"]
