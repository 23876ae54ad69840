"""The one comment of a pull request, in Markdown: its report, what members asked for besides, the answer to them."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from warpwatch.contract.commit_ids import short_sha
from warpwatch.db.forge import ChangeRequestRow
from warpwatch.server.history.commits import MERGE_BASE
from warpwatch.server.intake.comment_commands import PREFIX
from warpwatch.server.reports.markdown import LIMIT, MARKER, escape, markdown
from warpwatch.server.reports.model import Report

MAX_ANSWER = 4000
HELP = f"""Members of this project can write, as the first line of a comment:

- `{PREFIX} bench OPERATOR …` checks and benchmarks these operators at the newest commit; without a name, all of them.
- `{PREFIX} allow` measures the newest commit of a fork, after you have looked at it.
- `{PREFIX} allow COMMIT` does so for the commit with this full id, whatever was pushed since.
- `{PREFIX} help` shows this."""
_FOOTER = f"\n<sub>`{PREFIX} help` lists what members can ask for here.</sub>\n"


def change_comment(
    change: ChangeRequestRow, reports: Sequence[tuple[Report, Sequence[str]]], repository: str, server_url: str
) -> str:
    """reports: those of the head, oldest first, each with the operators that were asked for; none for all of them."""
    asked = ""
    for report, operators in reports:
        if operators:
            names = ", ".join(operators[:10]) + (" …" if len(operators) > 10 else "")
            link = f"[submission {report.submission_id}]({report.url})"
            asked += f"- {escape(names[:300])}: {link}: {escape(report.summary)}\n"
    rest = f"\n#### Asked for\n\n{asked}" if asked else ""
    rest += f"\n{change.answer[:MAX_ANSWER]}\n" if change.answer else ""
    rest += _FOOTER
    whole = [report for report, operators in reports if not operators]
    if whole:
        return markdown(whole[-1], LIMIT - len(rest)) + rest
    if change.is_fork and change.allowed_sha != change.head_sha:
        return _waiting(change, repository, server_url) + rest
    return f"{MARKER}\n### Warpwatch: `{short_sha(change.head_sha)}` of {escape(repository)}\n" + rest


def _waiting(change: ChangeRequestRow, repository: str, server_url: str) -> str:
    form = urlencode({"repository": repository, "commits": change.head_sha, "base": MERGE_BASE})
    return (
        f"{MARKER}\n### ⏳ Warpwatch: `{short_sha(change.head_sha)}` waits for a member\n\n"
        f"It comes from a fork, so a member of this project looks at it before it runs on the devices of "
        f"{escape(repository)}, and then writes a comment that begins with\n\n"
        f"```\n{PREFIX} allow {change.head_sha}\n```\n"
        f"or submits it with [the form]({server_url}/runs/new?{form}).\n"
    )


def refusal(words: str) -> str:
    """An answer to a command that was not done. words: as they are, from anywhere."""
    return f"> ⚠️ {escape(words[: MAX_ANSWER // 2])}"
