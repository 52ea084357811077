"""Prompts, with the greedy tokens that stock vLLM gives for them.

At each of these tokens the runner-up is at least 0.6 nats behind, so that no rounding decides.
"""

# 48, 51 and 4 tokens.
PROMPTS = (
    "And it came to pass in the days of the king, that the men of the city went out, and the " * 2
    + "king of",
    "Now these are the names of the children of Israel, who came into Egypt, every man and his "
    "house, Now these are the names of the children of Israel, who came into Egypt, every man and "
    "his house, and the children of Is",
    "And it came to",
)

# " Babylon, and all the people", "sachar, and", " pass, when the king’"
GREEDY_TOKENS = [
    [1148, 12, 268, 366, 259, 495],
    [83, 585, 293, 82, 12, 268],
    [607, 12, 450, 259, 414, 484],
]
