"""Asks for the comparison of changes that only imported results show, by the program that the repository has."""

from __future__ import annotations

from warpwatch import git
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.measurement import is_reported
from warpwatch.db.database import Database
from warpwatch.db.reads import judging
from warpwatch.db.reads.judging import RegressionFacts
from warpwatch.db.regressions import list_unconfirmed, may_compare
from warpwatch.db.triage import SERVICE, has_note, triage
from warpwatch.project import FILE_NAME, Project, ProjectError, parse_project
from warpwatch.server.judge.writing import ContextChangedError, VerdictWriter
from warpwatch.server.verdicts.context import RegressionContext
from warpwatch.server.verdicts.table import next_step
from warpwatch.settings import Settings


class ComparisonRequestError(ValueError):
    """A change of imported results cannot be compared here. remedy: what to do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.message = message
        self.remedy = remedy


def compare_imported(database: Database, settings: Settings, regression_id: int) -> None:
    """Asks for a trial of the change, which then goes the way of a measured suspicion; the regression must exist.

    ComparisonRequestError: nothing here could answer.
    """
    with database.session() as session:
        if not may_compare(session, regression_id):
            raise ComparisonRequestError(
                "no worker can decide it, or it is no suspicion from imported results alone",
                "start a worker on its device, or import with --device and the key of one that has a worker",
            )
        facts = judging.read_facts(session, regression_id)
    # git may have to fetch, so no transaction is open meanwhile.
    try:
        mirror = git.update_mirror(
            facts.regression.repository_url, settings.home, settings.destinations, git.REQUEST_SECONDS
        )
        for sha in (facts.regression.base_sha, facts.regression.head_sha):
            _expect_program(parse_project(git.read_file(mirror, sha, FILE_NAME)), facts, sha)
    except (git.GitError, ProjectError) as error:
        raise ComparisonRequestError(str(error), "mend it, or compare by `warpwatch run --kinds compare`") from error
    regression = facts.regression
    ids = {regression.base_sha: regression.base_commit_id, regression.head_sha: regression.head_commit_id}
    with database.session() as session:
        writer = VerdictWriter(session, regression.operator_id, regression.device_id, ids)
        writer.write_steps(facts, [next_step(RegressionContext(facts))])


def confirm_imported_changes(database: Database, settings: Settings, submission_id: int) -> None:
    """Asks for the comparison of all that the imported results of a submission leave suspected, once they are judged. A
    change that nothing here can compare gets a note that says why; the next import with `confirm` tries again."""
    with database.session() as session:
        changes = list_unconfirmed(session, submission_id)
    for regression_id in changes:
        try:
            compare_imported(database, settings, regression_id)
        except ContextChangedError:
            # Somebody asked for it at the same moment.
            continue
        except ComparisonRequestError as error:
            note = f"not compared: {error}"
            with database.session() as session:
                if not has_note(session, regression_id, note):
                    triage(session, [regression_id], author=SERVICE, note=note, fields={})


def _expect_program(project: Project, facts: RegressionFacts, sha: str) -> None:
    """ComparisonRequestError unless a commit has the program whose results were imported.

    What `warpwatch run` measured is an operator of the repository, which any worker measures.
    """
    protocols = {member.protocol for member in facts.members}
    if not any(map(is_reported, protocols)):
        return
    name = facts.regression.operator
    program = project.program(name)
    if program is None or {program.format} != protocols:
        written = " and ".join(sorted(protocols))
        raise ComparisonRequestError(
            f"{FILE_NAME} of {short_sha(sha)} has no program {name!r} that writes {written}",
            "add it there, and import under its name (--program)",
        )
