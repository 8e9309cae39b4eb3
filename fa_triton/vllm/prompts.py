"""Sixteen prompts of different length, for the demo, the tests and the measurements."""

from __future__ import annotations

_STORY = (
    "Once upon a time a lighthouse keeper found a letter in a bottle. It had been written many "
    "years ago by a sailor who had lost his way in the fog, and it asked whoever found it to "
    "light the lamp earlier on autumn evenings. "
)

PROMPTS = (
    "The capital of France is",
    "Water boils at",
    "In one sentence, attention in a language model is",
    "Count from one to ten: one, two, three,",
    "The first president of the United States was",
    "A short recipe for pancakes: take two eggs, a cup of flour and",
    "Photosynthesis is the process by which plants",
    "The three primary colours are",
    "Why is the sky blue? Because",
    "To sort a list in Python you can call",
    "The opposite of hot is cold, the opposite of tall is short, the opposite of early is",
    "Monday, Tuesday, Wednesday,",
    _STORY + "The keeper decided to",
    _STORY * 2 + "That evening the lamp",
    _STORY * 4 + "In the end the keeper wrote back:",
    "A triangle has three sides, a square has four sides, a pentagon has",
)
