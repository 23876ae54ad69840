"""`warpwatch ci …`: CI jobs that submit with the ID token of their code host."""

from __future__ import annotations

from urllib.parse import quote

import typer

from warpwatch.cli import app
from warpwatch.cli.asking import asking

ci_app = typer.Typer(no_args_is_help=True, help="CI jobs that submit without a stored secret.")
app.add_typer(ci_app, name="ci")


@ci_app.command("trust")
def trust(
    repository: str = typer.Argument(..., help="Name of a registered repository."),
    github: str | None = typer.Option(None, help="OWNER/NAME on GitHub whose workflows may submit."),
    gitlab: str | None = typer.Option(None, help="GROUP/PROJECT on GitLab whose pipelines may submit."),
    issuer: str | None = typer.Option(None, help="Address of the GitLab server, or of another issuer."),
    subject: str | None = typer.Option(None, help="Instead of both: whom the token must name; * for anything."),
    audience: str | None = typer.Option(None, help="For whom the token is made. Default: WARPWATCH_URL of the server."),
) -> None:
    """Let CI jobs submit for a repository, and read their submissions."""
    if sum(option is not None for option in (github, gitlab, subject)) != 1:
        raise typer.BadParameter("give one of --github, --gitlab and --subject")
    if gitlab is not None:
        subject, issuer = f"project_path:{gitlab}:*", issuer or "https://gitlab.com"
    elif github is not None:
        subject = f"repo:{github}:*"
    with asking() as client:
        body = {"subject": subject, "audience": audience} | ({"issuer": issuer} if issuer else {})
        row = client.post(f"/repositories/{quote(repository, safe='')}/ci", body)
        typer.echo(f"{row['id']}\t{row['issuer']}\t{row['subject']}\tfor {row['audience']}")


@ci_app.command("list")
def list_trusted(repository: str) -> None:
    """List the CI jobs that a repository trusts, with their last use."""
    with asking() as client:
        before = None
        while True:
            page = client.get(f"/repositories/{quote(repository, safe='')}/ci", before=before)
            for row in page["items"]:
                used = row["last_used_at"] or "never used"
                typer.echo("\t".join([str(row["id"]), row["issuer"], row["subject"], row["audience"], used]))
            before = page["next_before"]
            if before is None:
                return


@ci_app.command("remove")
def remove(repository: str, number: int = typer.Argument(..., help="See `warpwatch ci list`.")) -> None:
    """Trust CI jobs no longer."""
    with asking() as client:
        client.delete(f"/repositories/{quote(repository, safe='')}/ci/{number}")
        typer.echo(f"CI jobs {number} are not trusted any more")
