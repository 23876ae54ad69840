"""Checks of a variant: right results, honest calls and probes."""
