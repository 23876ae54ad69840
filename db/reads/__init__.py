"""What the pages and the API show: every read query as a verb-named function that returns frozen dataclasses of
db.reads.rows."""
