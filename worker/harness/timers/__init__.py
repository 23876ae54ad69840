"""Timers of each metric, and the state and counts of a device meanwhile."""
