"""Queries of pages and API over several subjects, as verb-named functions that return frozen dataclasses.

A dataclass stands beside the query that returns it. Durations are nanoseconds, sizes bytes, times UTC; a `change` is
new over old, 1.0 meaning no change. Queries of one subject stand in its module of `db`, beside its writes.
"""
