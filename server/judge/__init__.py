"""Judges ended jobs in the background: opens suspicions, asks for trials, and locates the commit behind a change.

interpreter – takes one ended job after another, reads what it is judged from, asks git, has it decided, writes once.
writing – writes verdicts, trials and suspicions within that one transaction. closing – ends changes by evidence. All
rules are pure functions in `warpwatch.server.verdicts`.
"""

from warpwatch.server.judge.interpreter import Judge

__all__ = ["Judge"]
