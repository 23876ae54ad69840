"""Takes in patches that are to be judged, on cases that the server's owner chose.

A client names the operator and sends a patch. Everything else stands in the owner's file: base, variants, cases, device
and budget. So nothing that a client sends chooses what is measured, or what it is compared with.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import tomllib
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from warpwatch import git
from warpwatch.contract.data_folder import judgements_folder
from warpwatch.contract.priorities import ORDINARY
from warpwatch.contract.words import JobKind
from warpwatch.db.database import Database
from warpwatch.db.judgements import NewJudgement, count_turns, create_judgement
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.query import Session
from warpwatch.patches import PatchError, patch_of_files
from warpwatch.server.history.commits import fetch_repository, read_mirror
from warpwatch.server.history.sources import SourceCache
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.intake.patch_requests import StoredPatch, take_patch
from warpwatch.server.intake.planned_jobs import PlannedJob, plan_jobs
from warpwatch.server.intake.space import require_space
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.server.intake.submissions import plan_submission, repository_of, store_submission
from warpwatch.server.receipts import receipt_key
from warpwatch.settings import Settings
from warpwatch.sources import Sources

REFUSED = "not judged: some fields are not valid"
RULES_FILE = "rules.toml"
_log = logging.getLogger(__name__)
_Case = Annotated[str, Field(min_length=1, max_length=500)]


class JudgedOperator(BaseModel):
    """One operator that patches are judged for. base: a ref; default: the watched branch. public, hidden: keys of
    cases. draw: how many of the hidden ones a judgement is on, drawn anew for each; default: all."""

    model_config = ConfigDict(extra="forbid")
    repository: str
    operator: str
    device: str
    base: str | None = None
    variants: list[str] = Field(min_length=1, max_length=20)
    public: list[_Case] = Field(min_length=1, max_length=50)
    hidden: list[_Case] = Field(min_length=1, max_length=1000)
    draw: int | None = Field(default=None, ge=1, le=50)

    @model_validator(mode="after")
    def _hides_its_cases(self) -> JudgedOperator:
        if set(self.public) & set(self.hidden):
            raise ValueError("a case is public and hidden at once")
        if (self.draw or len(self.hidden)) > min(50, len(self.hidden)):
            raise ValueError("set `draw` to at most 50, and to no more than there are hidden cases")
        return self


class JudgementRules(BaseModel):
    """The owner's file. seconds: of device time for one judgement. step: seconds that each of its three sealed jobs
    takes. open, per_day: judgements of one client."""

    model_config = ConfigDict(extra="forbid")
    seconds: float = Field(default=600, ge=1, le=86_400)
    step: int = Field(default=60, ge=1, le=3600)
    open: int = Field(default=3, ge=1, le=10)
    per_day: int = Field(default=20, ge=1, le=10_000)
    leaderboard: bool = False
    judged: list[JudgedOperator] = Field(min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _has_time_for_its_steps(self) -> JudgementRules:
        if self.seconds < 4 * self.step:
            raise ValueError("set `seconds` to at least four times `step`: three sealed jobs take a step each")
        return self


class JudgementRequest(BaseModel):
    """A patch for one operator: the output of `git diff --binary BASE`, or whole files by their path. The server's
    owner has chosen base, cases, variants, device and budget."""

    model_config = ConfigDict(extra="forbid")
    repository: str = Field(min_length=1, max_length=100)
    operator: str = Field(min_length=1, max_length=200)
    patch: str | None = Field(default=None, min_length=1, max_length=900_000)
    files: dict[str, str] | None = Field(default=None, min_length=1, max_length=200, examples=[{"csrc/a/a.cpp": "…"}])

    @model_validator(mode="after")
    def _sends_one(self) -> JudgementRequest:
        if (self.patch is None) == (self.files is None):
            raise ValueError("send either `patch` or `files`")
        return self


def read_rules(settings: Settings) -> JudgementRules:
    """The owner's file; Problem 409 where there is none, and 503 where it cannot be used. No answer quotes it."""
    path = judgements_folder(settings.home) / RULES_FILE
    if not path.exists():
        raise Problem(409, "this server judges no patches until its owner writes rules for it, see docs/judgements.md")
    try:
        return JudgementRules.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        _log.error("%s cannot be used: %s", path, error)
    raise Problem(503, "the server's file of judgements cannot be used; its log tells the owner why")


def take_judgement(
    database: Database, settings: Settings, request: JudgementRequest, client: str, cache: SourceCache | None = None
) -> int:
    """The id of the new judgement; Problem names every field at fault."""
    rules = read_rules(settings)
    judged = _find_judged(rules, request)
    with database.session() as session:
        repository = repository_of(session, request.repository)
        _take_turn(session, rules, client)
    require_space(database, settings)
    stored, content, base_sha = _store_patch(database, settings, repository, judged, request)
    sources = Sources(git.mirror_path(repository.url, settings.home), repository.definitions)
    _expect_code_only(sources, stored, judged.operator)
    planned = SubmissionRequest(
        repository=request.repository,
        commits=stored.sha,
        base=base_sha,
        kinds=[JobKind.CHECK, JobKind.COMPARE],
        operators=[judged.operator],
        variants=judged.variants,
        cases=judged.public,
        device=judged.device,
    )
    read = read_mirror(git.mirror_path(repository.url, settings.home), repository, stored.sha, base_sha, None)
    plan = plan_submission(database, settings, repository, read, planned, cache)
    jobs = plan_jobs(plan, planned)
    facts = {
        "base": base_sha,
        "patch": {"commit": stored.sha, "sha256": hashlib.sha256(content).hexdigest(), "files": stored.files},
        "sources": {"base": sources.of(base_sha, judged.operator), "head": sources.of(stored.sha, judged.operator)},
        "definition": sources.definition(base_sha, judged.operator),
        "variants": judged.variants,
        "hidden_set": _mark(settings, judged),
        "budget_seconds": rules.seconds,
    }
    sealed = _sealed_jobs(jobs, rules.step)
    with database.session() as session:
        opened = _take_turn(session, rules, client)
        # The first open judgement of every client comes before the second of anybody.
        planned.priority = ORDINARY - opened
        submission_id = store_submission(session, plan, [*jobs, *sealed], planned, "api", None)
        return create_judgement(
            session,
            NewJudgement(
                repository_id=repository.id,
                submission_id=submission_id,
                operator=judged.operator,
                device_key=judged.device,
                client=client,
                salt=secrets.token_hex(32),
                facts=facts,
                budget_seconds=rules.seconds,
                hidden=secrets.SystemRandom().sample(judged.hidden, judged.draw or len(judged.hidden)),
                seeds=[secrets.randbelow(2**31) for _ in sealed],
            ),
        )


def _find_judged(rules: JudgementRules, request: JudgementRequest) -> JudgedOperator:
    for judged in rules.judged:
        if (judged.repository, judged.operator) == (request.repository, request.operator):
            return judged
    known = ", ".join(f"{judged.operator} of {judged.repository}" for judged in rules.judged)
    message = f"patches of {request.operator!r} in {request.repository!r} are not judged here"
    raise Problem(422, REFUSED, [FieldError(field="operator", message=message, remedy=f"choose from {known}")])


def _take_turn(session: Session, rules: JudgementRules, client: str) -> int:
    """How many judgements of the client are open; Problem 429 where it has to wait. Every answer tells a little about
    the hidden cases, so their number has a limit."""
    opened, today = count_turns(session, client)
    if opened >= rules.open:
        raise Problem(429, f"{opened} judgements of yours are open; wait for their end", headers={"Retry-After": "60"})
    if today >= rules.per_day:
        detail = f"you had {today} judgements within a day, as many as a client may; ask again tomorrow"
        raise Problem(429, detail, headers={"Retry-After": "3600"})
    return opened


def _store_patch(
    database: Database,
    settings: Settings,
    repository: RepositoryRow,
    judged: JudgedOperator,
    request: JudgementRequest,
) -> tuple[StoredPatch, bytes, str]:
    """The patch on the owner's base, its content, and the base; Problem where it does not apply."""
    mirror = fetch_repository(settings, repository)
    try:
        base_sha = git.resolve(mirror, judged.base or repository.branch or "HEAD")
    except git.UnknownRefError as error:
        _log.error("judgements of %s: %s", judged.operator, error)
        raise Problem(503, "the server's file of judgements names an unknown base; tell its owner") from error
    try:
        content = patch_of_files(mirror, base_sha, request.files) if request.files else (request.patch or "").encode()
        return take_patch(database, settings, repository, base_sha, content), content, base_sha
    except PatchError as error:
        remedy = f"send regular files that differ from {base_sha}"
        raise Problem(422, REFUSED, [FieldError(field="files", message=str(error), remedy=remedy)]) from error


def _expect_code_only(sources: Sources, stored: StoredPatch, operator: str) -> None:
    """Problem for a patch that changes what is measured, or how, besides the code of the operator's variants."""
    if sources.is_program(stored.base_sha, operator):
        message = f"{operator} is a benchmark program, which reports its own times"
        raise Problem(422, REFUSED, [FieldError(field="operator", message=message, remedy="choose an operator")])
    changed = sources.changed_definition(stored.base_sha, stored.sha, operator, stored.files)
    if changed is not None:
        message = f"the patch changes {changed}, which says what is measured or how"
        remedy = f"change the code of variants of {operator} and its native sources alone"
        raise Problem(422, REFUSED, [FieldError(field="patch", message=message, remedy=remedy)])
    if operator not in stored.operators:
        message = f"the patch leaves {operator} as it is"
        raise Problem(422, REFUSED, [FieldError(field="patch", message=message, remedy=f"change {operator}")])


def _sealed_jobs(jobs: list[PlannedJob], step: int) -> list[PlannedJob]:
    """The jobs of the hidden cases, whose rows name none: a check, a bench for cheats that only a timer sees, and the
    comparison. They come last, so that a child that knows hidden cases measures no public case."""
    sealed: dict[str, PlannedJob] = {}
    for job in jobs:
        spec = replace(job.spec, cases=None, pairs=None, known=None, sealed=True, step_seconds=step)
        sealed[job.kind] = replace(job, spec=spec)
    check, compare = sealed[JobKind.CHECK], sealed[JobKind.COMPARE]
    return [check, replace(check, kind=JobKind.BENCH), compare]


def _mark(settings: Settings, judged: JudgedOperator) -> str:
    """Is the same in two receipts where both were judged on the same hidden cases, and tells nothing else of them."""
    key: dict[str, Any] = dict(receipt_key(settings.home).as_dict(private=True))
    return hmac.new(str(key["d"]).encode(), "\n".join(sorted(judged.hidden)).encode(), hashlib.sha256).hexdigest()
