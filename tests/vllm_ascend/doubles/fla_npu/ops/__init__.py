"""Operators of the stand-in."""
