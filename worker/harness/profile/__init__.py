"""Profiles of calls: traces, their summary, and hardware counters."""
