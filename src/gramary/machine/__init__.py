"""What this machine has free."""
