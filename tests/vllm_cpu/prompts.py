"""Prompts whose next tokens stand apart from the runners-up, for all variants."""

TALE = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, "
    "it was the age of foolishness, "
) * 2

# 70, 71 and 5 tokens.
PROMPTS = (TALE + "and", TALE + "but then", "In the beginning")
