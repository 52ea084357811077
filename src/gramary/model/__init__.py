"""What a table is: its configuration, its hash, its codecs."""
