"""What crosses a process boundary, as types: closed lists, job specifications, requests and replies, outcomes, and
their checked JSON.

Standard library alone, and nothing of ours. Everything else may import it.
"""
