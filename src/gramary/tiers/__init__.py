"""Tiers: the places where an extent of rows may live, behind one contract (`base.Tier`)."""
