"""Detectors of changes that ours is held against, and series to hold them against."""
