"""Documents quote the files in examples, which are tested, word for word."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
QUOTED = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


def test_the_walk_through_quotes_the_example() -> None:
    quoted = dict(QUOTED.findall((ROOT / "docs" / "adding-a-kernel.md").read_text()))
    example = ROOT / "examples" / "softsign"
    files = {str(path.relative_to(example)): path.read_text() for path in example.rglob("*") if path.is_file()}
    assert quoted == {name: text for name, text in files.items() if "__pycache__" not in name}
