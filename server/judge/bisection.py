"""Finds the commit behind a confirmed change: halves the range by trials, proves the pair it ends with, and sees what
is left over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from warpwatch.contract.words import Answer, Purpose, Verdict
from warpwatch.db.reads import judging
from warpwatch.db.reads.judging import TrialState
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import attach_compare_job, copy_members, decide, decide_series, move, settle
from warpwatch.db.triage import SERVICE, set_triage
from warpwatch.git import GitError, path
from warpwatch.server.history.mirror import record
from warpwatch.server.judge.answers import TrialResult, evaluate_trial
from warpwatch.server.judge.asking import ask_trial, asked_before, is_plain, may_ask
from warpwatch.server.judge.dossier import RegressionContext, remark
from warpwatch.server.judge.leftover import suspect_residual
from warpwatch.server.verdicts import bisect as halving
from warpwatch.server.verdicts.thresholds import thresholds_of


@dataclass(frozen=True, slots=True)
class CommitRange:
    """The commits of a confirmed range, the good end first, and what is known of them by their places.

    left: those that may be guilty. skipped: those that cannot be measured. innocent: how many have the sources of the
    one before.
    """

    shas: list[str]
    left: list[int]
    skipped: set[int]
    innocent: int

    @property
    def ends(self) -> tuple[str, str]:
        """The narrowest range that is known to hold the change."""
        base, head = halving.bounds(self.left)
        return self.shas[base], self.shas[head]


def bisect(session: Session, dossier: RegressionContext) -> int | None:
    """Takes the next step towards the commit behind a confirmed change, or settles the change where there is none to
    take.

    The id of the suspicion of what the commit that was found does not explain, where there is any.
    """
    whole = dossier.whole
    try:
        line = _line(dossier, whole) if whole else None
    except GitError as error:
        remark(session, dossier.regression.id, f"not bisected: {error}")
        line = None
    if whole is None or line is None:
        settle(session, dossier.regression.id)
        return None
    if _halve(session, dossier, line):
        return None
    proof = _proof(session, dossier, line)
    return None if proof is None else _close(session, dossier, line, proof)


def _line(dossier: RegressionContext, whole: TrialState) -> CommitRange:
    """What is known of the commits between the ends of the confirmed range."""
    operator, sources = dossier.regression.operator, dossier.mirror.sources
    shas = path(dossier.mirror.path, whole.base_sha, whole.head_sha)
    made_from = [sources.of(sha, operator) for sha in shas]
    differs = [False] + [one != other for one, other in pairwise(made_from)]
    # Imports made at run time are not seen: where the only commit that seemed guilty is not, all of them are asked.
    is_misled = any(one.purpose == Purpose.PROVE and one.answer == Answer.SAME for one in dossier.trials)
    if is_misled or not any(differs):
        differs = [False] + [True] * (len(shas) - 1)
    place = {sha: number for number, sha in enumerate(shas)}
    known = [
        one
        for one in dossier.trials
        if one.base_sha in place and one.head_sha in place and one.base_sha != one.head_sha
    ]
    findings = [
        halving.RangeAnswer(place[one.base_sha], place[one.head_sha], one.answer == Answer.CHANGED)
        for one in known
        if one.answer in (Answer.CHANGED, Answer.SAME)
    ]
    skipped = {place[one.head_sha] for one in known if one.answer == Answer.SKIPPED}
    skipped |= {number for number, found in enumerate(made_from) if found is None}
    return CommitRange(shas, halving.suspects(differs, findings), skipped, differs[1:].count(False))


def _halve(session: Session, dossier: RegressionContext, line: CommitRange) -> bool:
    """Asks for the trial that halves the range; False when there is none to ask for."""
    place = halving.middle(line.left, line.skipped)
    if place is None:
        return False
    base, head = line.ends[0], line.shas[place]
    before = asked_before(dossier, base, head)
    if not may_ask(before):
        return False
    confirmed = dossier.having(Verdict.CONFIRMED)
    kind = dossier.regression.device_kind
    thresholds = thresholds_of(kind)
    few = thresholds.few_rounds if is_plain(confirmed, kind) else thresholds.rounds
    ask_trial(session, dossier, Purpose.BISECT, base, head, confirmed, thresholds.more_rounds if before else few)
    return True


def _proof(session: Session, dossier: RegressionContext, line: CommitRange) -> TrialState | None:
    """The trial that shows the change between the ends of the range; None when it had to be asked for.

    Where the ends cannot be told apart for certain, that is the trial of the narrowest range that holds them.
    """
    changed = [one for one in dossier.trials if one.answer == Answer.CHANGED and one.base_sha != one.head_sha]
    here = asked_before(dossier, *line.ends)
    direct = [one for one in here if one in changed]
    if direct:
        return direct[-1]
    if may_ask(here):
        ask_trial(
            session,
            dossier,
            Purpose.PROVE,
            *line.ends,
            dossier.having(Verdict.CONFIRMED),
            thresholds_of(dossier.regression.device_kind).more_rounds if here else None,
        )
        return None
    place = {sha: number for number, sha in enumerate(line.shas)}
    within = [one for one in changed if one.base_sha in place and one.head_sha in place]
    return min(within, key=lambda one: place[one.head_sha] - place[one.base_sha])


def _close(session: Session, dossier: RegressionContext, line: CommitRange, proof: TrialState) -> int | None:
    """Gives the regression the range and the numbers that were found, and settles it; the id of the suspicion of what
    is left."""
    state = dossier.regression
    is_refuted = any(one.answer == Answer.SAME for one in asked_before(dossier, *line.ends))
    base, head = (proof.base_sha, proof.head_sha) if is_refuted else line.ends
    said = evaluate_trial(session, dossier, proof)
    ids = record(session, dossier.mirror, state.repository_id, [base, head])
    moved = (ids[base], ids[head]) != (state.base_commit_id, state.head_commit_id)
    other = move(session, state.id, ids[base], ids[head]) if moved else None
    if other is not None:
        _merge(session, dossier, other, proof, said)
    else:
        if moved or proof != dossier.whole:
            _write(session, state.id, proof, said)
        if moved or len(line.shas) > 2:
            remark(session, state.id, _summary(line, base, head, proof))
        _supersede(session, state.id)
    settle(session, state.id)
    return suspect_residual(session, dossier, head, ids[head], said)


def _write(session: Session, regression_id: int, proof: TrialState, said: TrialResult) -> None:
    """The numbers, decisions and traces of the trial that shows the change."""
    most = said.worst
    if most is None:
        return
    traces = [
        judging.find_trace(session, proof.job_id, commit, most.series_id)
        for commit in (proof.base_commit_id, proof.head_commit_id)
    ]
    if proof.kind == "compare":
        attach_compare_job(session, regression_id, proof.job_id)
    decide(
        session,
        regression_id,
        Verdict.CONFIRMED,
        ratio=most.ratio,
        low=most.low,
        high=most.high,
        series=said.decisions,
        base_trace_id=traces[0],
        head_trace_id=traces[1],
    )


def _merge(session: Session, dossier: RegressionContext, other: int, proof: TrialState, said: TrialResult) -> None:
    """Another regression has the range that was found: it gets the series, and this one says where they went."""
    mine = dossier.regression.id
    known = {one.series_id for one in judging.list_members(session, other) if one.verdict == Verdict.CONFIRMED}
    shown = [one for one in said.decisions if one.verdict == Verdict.CONFIRMED]
    copy_members(session, mine, other)
    if known:
        decide_series(session, other, [one for one in shown if one.series_id not in known])
    else:
        _write(session, other, proof, replace(said, decisions=shown))
    remark(session, other, f"regression {mine}, of a wider range, turned out to be the same change")
    settle(session, other)
    set_triage(session, mine, "invalid", SERVICE, f"the same change as regression {other}")


def _summary(line: CommitRange, base: str, head: str, proof: TrialState) -> str:
    """What the bisection found, and what it did not have to look at or could not."""
    places = line.shas.index(base), line.shas.index(head)
    between = places[1] - places[0] - 1
    found = f"found: {head[:9]}" if between == 0 else f"narrowed down to {base[:9]}..{head[:9]}, {between + 1} commits"
    words = [found, proof.message]
    if line.innocent:
        words.append(f"{line.innocent} of {len(line.shas) - 1} commits left the sources of the operator as they were")
    skipped = [line.shas[place][:9] for place in sorted(line.skipped)]
    if skipped:
        words.append(f"skipped, as they cannot be measured: {', '.join(skipped)}")
    if halving.middle(line.left, line.skipped) is not None:
        words.append("what was measured in between was unsure")
    return "; ".join(word for word in words if word)


def _supersede(session: Session, regression_id: int) -> None:
    """A wider range that could not be bisected, and in which this change was found later, is done with."""
    for wider in judging.list_wider(session, regression_id):
        set_triage(session, wider, "invalid", SERVICE, f"narrowed down to regression {regression_id}")
