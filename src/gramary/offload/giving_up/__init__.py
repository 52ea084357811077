"""Tickets that are given up: by their owner, or by the watchdog."""
