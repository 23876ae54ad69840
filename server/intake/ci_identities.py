"""Checks and makes the identities of CI jobs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from warpwatch.db.ci_identities import NewCiIdentity, add_ci_identity
from warpwatch.db.reads.query import Session
from warpwatch.destinations import DestinationError, is_trustworthy
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.settings import Settings

GITHUB = "https://token.actions.githubusercontent.com"
"""Who signs the ID tokens of GitHub Actions; a GitLab server signs its own."""


class CiIdentityRequest(BaseModel):
    """CI jobs that may submit for a repository without a stored secret. audience: by default the address of this
    server."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    issuer: str = Field(default=GITHUB, max_length=400, description="Who signs the tokens, such as a GitLab server.")
    subject: str = Field(
        min_length=1,
        max_length=400,
        description="Whom the token must name; `*` stands for anything. GitHub: `repo:OWNER/NAME:*`, GitLab: "
        "`project_path:GROUP/PROJECT:*`.",
        examples=["repo:acme/kernels:*"],
    )
    audience: str | None = Field(default=None, min_length=1, max_length=400)

    @field_validator("issuer")
    @classmethod
    def check_issuer(cls, issuer: str) -> str:
        if not is_trustworthy(issuer):
            raise ValueError("it is not reached by https; enter an address such as https://gitlab.example")
        return issuer.rstrip("/")

    @field_validator("subject")
    @classmethod
    def check_subject(cls, subject: str) -> str:
        fixed, wildcard, _ = subject.partition("*")
        if wildcard and ("/" not in fixed or fixed[-1] not in ":/"):
            raise ValueError("jobs of others could match it; name the project in front of *, as in repo:OWNER/NAME:*")
        return subject


def trust_ci(session: Session, settings: Settings, repository_id: int, body: CiIdentityRequest) -> int:
    """The id of the identity; Problem for an issuer that this server may not connect to."""
    try:
        settings.destinations.check_literal(body.issuer)
    except DestinationError as error:
        raise Problem(422, "not added", [FieldError(field="issuer", message=str(error))]) from None
    new = NewCiIdentity(body.issuer, body.audience or settings.server_url, body.subject)
    return add_ci_identity(session, repository_id, new)
