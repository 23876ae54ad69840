"""Draws verdicts in the background: suspicions from new results, trials that confirm or dismiss them, and the commit
behind each.

thread – one transaction per ended job. verdict – what kind of job it is. suspicion, correctness – what new times and
new checks show. confirmation, bisection, leftover – what becomes of a suspicion. asking, answers – the jobs that are
its trials, and what they said. repetition – what a comparison that somebody asked for leaves open. dossier, known,
mirror, code – what all of them look at.
"""

from warpwatch.server.judge.asking import CODE_PRIORITY, CONFIRM_PRIORITY, MAX_PAIRS
from warpwatch.server.judge.thread import Judge

__all__ = ["CODE_PRIORITY", "CONFIRM_PRIORITY", "MAX_PAIRS", "Judge"]
