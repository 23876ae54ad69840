"""Replaces every message by another text, to show that nothing is decided by the words of a message.

`pytest --reword` turns this on: PostgreSQL rewords what is written into any `message` column, whoever writes it, and
the contract's findings and comparisons are reworded where they are made. Empty messages stay empty, because a page
shows a message only where there is one. A test that follows a text of its own through the database compares it with
`stored`. Tests of what a schedule or a status notification says of itself, or of evidence that a message must quote,
carry the mark `words` and are left out.
"""

from __future__ import annotations

from hashlib import md5
from typing import Any

import psycopg
import pytest

START = "reworded "
TABLES = (
    *("jobs", "runs", "all_results", "all_comparisons", "awaited_files", "trials", "schedules"),
    *("callbacks", "deliveries", "forge_links", "forge_messages"),
)
"""Tables whose column `message` Warpwatch itself writes."""

_FUNCTIONS = f"""
CREATE OR REPLACE FUNCTION reworded(message text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN message = '' OR message LIKE '{START}%' THEN message
                ELSE '{START}' || left(md5(message), 8) END
$$;
CREATE OR REPLACE FUNCTION reword_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.message := reworded(NEW.message); RETURN NEW; END $$;
CREATE OR REPLACE FUNCTION reword_trouble() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.facts := NEW.facts || jsonb_build_object('trouble', reworded(NEW.facts ->> 'trouble')); RETURN NEW; END $$;
CREATE OR REPLACE TRIGGER reword BEFORE INSERT OR UPDATE OF facts ON workers
    FOR EACH ROW WHEN (NEW.facts ? 'trouble') EXECUTE FUNCTION reword_trouble();
"""
_TRIGGER = """
CREATE OR REPLACE TRIGGER reword BEFORE INSERT OR UPDATE OF message ON {table}
    FOR EACH ROW EXECUTE FUNCTION reword_message();
"""


class Switch:
    """Whether messages are reworded in this process; conftest.py sets it from the option."""

    is_on = False


def stored(message: str) -> str:
    """A message that a test wrote itself, as the database returns it."""
    return reworded(message) if Switch.is_on else message


def reworded(message: str) -> str:
    """Another text for a message; the same for the same message, and itself for a reworded one."""
    if not message or message.startswith(START):
        return message
    return START + md5(message.encode(errors="replace"), usedforsecurity=False).hexdigest()[:8]


def reword_database(url: str) -> None:
    """Makes the database at `url` reword every message that is written into it from now on."""
    with psycopg.connect(url) as connection:
        connection.execute(_FUNCTIONS)
        for table in TABLES:
            connection.execute(_TRIGGER.format(table=table))


def reword_contract(patch: pytest.MonkeyPatch) -> None:
    """Makes every finding and comparison that is built from now on, or until the patch is undone, a reworded one."""
    from warpwatch.contract.outcome import Comparison, Finding

    for kind in (Comparison, Finding):
        patch.setattr(kind, "__init__", _rewording(kind.__init__))


def _rewording(build: Any) -> Any:
    def build_reworded(self: Any, *values: Any, **named: Any) -> None:
        build(self, *values, **named)
        object.__setattr__(self, "message", reworded(self.message))

    return build_reworded
