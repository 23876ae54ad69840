"""Finds operators, cases, commits, regressions and jobs of a repository by words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy.orm import Session

from warpwatch.contract.commit_ids import SHORT_SHA
from warpwatch.db.reads.query import MAX_PAGE, Page, fetch


@dataclass(frozen=True, slots=True)
class SearchRow:
    """kind: operator, case, commit, regression or job. key: its name, SHA or number.

    operator: None for a commit. device_key: a device that the case was benchmarked on; None for the other kinds.
    """

    kind: str
    key: str
    title: str
    detail: str
    operator: str | None
    device_key: str | None


# Each kind is cut on its own before the kinds are joined, so that no query reads more than a page of each. Regressions
# and jobs are found through the operators of the repository, cases through their operator, commits by the words of
# their subject and author (ix_commits_words) or the beginning of their SHA. A case is found once it was benchmarked,
# because its page is a history.
_SEARCH = f"""
WITH own AS (SELECT id, name, summary FROM operators WHERE repository_id = :repository_id),
operator_rows AS (
    SELECT 1 AS rank, name AS place, 'operator' AS kind, name AS key, name AS title, summary AS detail,
           name AS operator, CAST(NULL AS text) AS device_key
    FROM own WHERE name || ' ' || summary ILIKE ALL(:patterns)
    ORDER BY name NOT ILIKE ALL(:patterns), name LIMIT :cut
),
sha_rows AS (
    SELECT 0, sha, 'commit', sha, left(sha, {SHORT_SHA}) || ' ' || subject, author, CAST(NULL AS text), NULL
    FROM commits WHERE repository_id = :repository_id AND patch_id IS NULL AND CAST(:sha AS text) IS NOT NULL
         AND sha >= :sha AND sha < :sha || 'g'
    ORDER BY sha LIMIT :cut
),
regression_rows AS (
    SELECT 2, lpad(CAST(9999999999 - regressions.id AS text), 10, '0'), 'regression', CAST(regressions.id AS text),
           'Regression ' || regressions.id || ': ' || own.name, direction || ', ' || verdict || ', ' || head.subject,
           own.name, NULL
    FROM own JOIN regressions ON regressions.operator_id = own.id
    JOIN commits AS head ON head.id = regressions.head_commit_id
    WHERE concat_ws(' ', regressions.id, own.name, direction, verdict, head.subject) ILIKE ALL(:patterns)
    ORDER BY regressions.id DESC LIMIT :cut
),
case_rows AS (
    SELECT 3, own.name || ' ' || cases.key, 'case', cases.key, cases.key, own.name, own.name, device.key
    FROM own JOIN cases ON cases.operator_id = own.id
    CROSS JOIN LATERAL (
        SELECT devices.key FROM devices
        JOIN series ON series.operator_id = own.id AND series.device_id = devices.id AND series.case_id = cases.id
        LIMIT 1
    ) AS device
    WHERE own.name || ' ' || cases.key ILIKE ALL(:patterns) ORDER BY own.name, cases.id LIMIT :cut
),
commit_rows AS (
    SELECT 4, lpad(CAST(9999999999 - ordinal AS text), 10, '0'), 'commit', sha,
           left(sha, {SHORT_SHA}) || ' ' || subject, author, CAST(NULL AS text), NULL
    FROM commits WHERE repository_id = :repository_id AND patch_id IS NULL AND CAST(:words AS text) <> ''
         AND to_tsvector('simple', left(subject, 500) || ' ' || left(author, 100)) @@ to_tsquery('simple', :words)
         AND (CAST(:sha AS text) IS NULL OR sha < :sha OR sha >= :sha || 'g')
    ORDER BY ordinal DESC LIMIT :cut
),
job_rows AS (
    SELECT 5, lpad(CAST(9999999999 - jobs.id AS text), 10, '0'), 'job', CAST(jobs.id AS text),
           'Job ' || jobs.id || ': ' || jobs.kind || ' ' || own.name, jobs.state, own.name, NULL
    FROM own CROSS JOIN LATERAL (
        SELECT id, kind, state FROM jobs
        WHERE operator_id = own.id AND (id = :number OR own.name ILIKE ANY(:patterns)) ORDER BY id DESC LIMIT :cut
    ) AS jobs
    WHERE concat_ws(' ', jobs.id, own.name, jobs.kind, jobs.state) ILIKE ALL(:patterns)
    ORDER BY jobs.id DESC LIMIT :cut
)
SELECT kind, key, title, detail, operator, device_key FROM (
    SELECT * FROM operator_rows UNION ALL SELECT * FROM sha_rows UNION ALL SELECT * FROM regression_rows
    UNION ALL SELECT * FROM case_rows UNION ALL SELECT * FROM commit_rows UNION ALL SELECT * FROM job_rows
) AS found
ORDER BY rank, place, key LIMIT :limit OFFSET :skip
"""
_MOST_SKIPPED = 1000
"""Rows after which a search ends: whoever looks for more types another word."""


def search(
    session: Session, repository_id: int, text: str, before: int | None = None, limit: int = 20
) -> Page[SearchRow]:
    """Rows that match every word of the text, the most specific kind first; `before` counts rows of earlier pages."""
    words = text.split()[:8]
    if not words:
        return Page([], None)
    skip, size = min(before or 0, _MOST_SKIPPED), max(1, min(limit, MAX_PAGE))
    sha = words[0].lower() if len(words) == 1 and re.fullmatch(r"[0-9a-fA-F]{4,40}", words[0]) else None
    number = words[0].lstrip("#")
    # A text search for words that begin like these: "fold:* & trans:*".
    pieces = [piece for word in words for piece in re.findall(r"\w+", word)]
    rows = fetch(
        session,
        SearchRow,
        _SEARCH,
        repository_id=repository_id,
        patterns=[f"%{_literal(word.lstrip('#'))}%" for word in words],
        sha=sha,
        words=" & ".join(f"{piece}:*" for piece in pieces),
        number=int(number) if re.fullmatch(r"[0-9]{1,15}", number) else -1,
        cut=skip + size + 1,
        limit=size + 1,
        skip=skip,
    )
    has_more = len(rows) > size and skip + size <= _MOST_SKIPPED
    return Page(rows[:size], skip + size if has_more else None)


def _literal(word: str) -> str:
    """A word without the wildcards of LIKE."""
    return re.sub(r"([\\%_])", r"\\\1", word)
