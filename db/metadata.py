"""All tables: those of db/models, and those that stand beside the queries of the one subject that uses them."""

from __future__ import annotations

from warpwatch.db import (
    access,
    channels,
    forge,
    judgements,
    keeping,
    patches,
    proofs,
    saved_views,
    watches,
    worker_keys,
)
from warpwatch.db.models import Base

SUBJECTS = (access, channels, forge, judgements, keeping, patches, proofs, saved_views, watches, worker_keys)
"""Modules with tables of their own."""
METADATA = Base.metadata
