"""Judges ended jobs in the background: opens suspicions, asks for trials, and locates the commit behind a change.

thread – takes one ended job after another. interpreter – reads what a job is judged from, has it decided, writes once.
evidence – what git says, never inside a transaction. writing – carries out the steps. repetition – repeats comparisons
that somebody asked for and that are unsure. All rules are pure functions in `warpwatch.server.verdicts`.
"""

from warpwatch.server.judge.thread import Judge

__all__ = ["Judge"]
