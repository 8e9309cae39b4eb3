"""Tile configurations, one JSON file per device and operator."""
