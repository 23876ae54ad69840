"""What the pages and the API show: every read query as a verb-named function that returns frozen dataclasses.

A dataclass stands beside the query that returns it. Durations are nanoseconds, sizes bytes, times UTC; a `change` is
new over old, 1.0 meaning no change. Nothing here imports a module of db that writes.
"""
