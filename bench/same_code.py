"""Counts how many operator-commits are the same as their parent: by text, by syntax tree, and by machine code.

    python bench/same_code.py --repository ../Liger-Kernel --definitions examples/liger --operators rms_norm,geglu
    python bench/same_code.py --operators kron,attention        # native operators of this repository

The commits are the newest that touch files of one of the operators, beside their first parents. Where definitions are
given, Triton compiles what the operators launch for an H200, which need not be there (`compiled_launches.py`): machine
code, launches and their arguments count. Without definitions nvcc compiles the CUDA sources of each operator, and the
code of its kernels counts. What was compiled is kept in --cache by the text that it was made of.

Prints each operator-commit in which tree and machine code disagree, what is unknown, which imported files are no source
of their operator, and one row of a table.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).parents[1]))

from warpwatch import _fingerprint, _toolchain, git
from warpwatch.contract.spec import DefinitionsVersion
from warpwatch.definitions import mirror_of, newest_version, parse_source
from warpwatch.native import NVCC_FLAGS
from warpwatch.project import MeasuredCode, parse_project
from warpwatch.sources import Sources, literal_prefix, matches

ROOT = Path(__file__).parents[1]
COLUMNS = {
    "all": "operator-commits",
    "text": "same by text",
    "tree": "by syntax tree",
    "code": "by machine code",
    "beyond": "by machine code alone",
    "wrong": "by tree, with other machine code",
    "unknown": "machine code unknown",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What an operator is at a commit. code: None where it could not be compiled."""

    text: str
    tree: str
    code: str | None


class History:
    """Identities of operators at commits of a repository. Files are read once, compiled code is kept by its text."""

    def __init__(self, repository: Path, cache: Path) -> None:
        self.repository = repository
        self.unknown: dict[str, str] = {}
        self._cache = cache
        self._blobs: dict[str, bytes] = {}
        self._kept: dict[str, tuple[str, str]] = {}

    def commits(self, operators: Sequence[str], count: int) -> list[str]:
        """The newest commits that touch files of the operators, newest first."""
        specs = [f":(glob){glob}" for operator in operators for glob in self.globs(operator)]
        words = ("log", "--first-parent", "--min-parents=1", f"--max-count={count}", "--format=%H", "--", *specs)
        return git.git(*words, cwd=self.repository).split()

    def globs(self, operator: str) -> Sequence[str]:
        raise NotImplementedError

    def identity(self, sha: str, operator: str) -> Identity | None:
        """None where the commit has no such operator."""
        raise NotImplementedError

    def files(self, sha: str, globs: Sequence[str]) -> list[tuple[str, str]]:
        """Path and id of the files that match one of the globs."""
        prefixes = sorted({literal_prefix(glob) or "." for glob in globs})
        listing = git.git(
            "ls-tree", "-r", "-z", "--format=%(path)%x00%(objectname)", sha, *prefixes, cwd=self.repository
        )
        words = listing.split("\0")
        return [(path, blob) for path, blob in zip(words[::2], words[1::2], strict=False) if matches(path, globs)]

    def write(self, files: Iterable[tuple[str, str]], folder: Path) -> None:
        for path, blob in files:
            if blob not in self._blobs:
                command = ["git", "-C", str(self.repository), "cat-file", "blob", blob]
                self._blobs[blob] = subprocess.run(command, check=True, capture_output=True).stdout
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self._blobs[blob])

    def kept(self, key: str) -> tuple[str, str] | None:
        """(digest or "", reason) that was computed for this key."""
        file = self._cache / f"{key}.json"
        if key not in self._kept and file.exists():
            self._kept[key] = tuple(json.loads(file.read_text()))
        return self._kept.get(key)

    def keep(self, key: str, digest: str, reason: str) -> tuple[str, str]:
        """What could not be compiled is kept for this run alone, since a compiler may have been out of memory."""
        self._kept[key] = digest, reason
        if digest:
            self._cache.mkdir(parents=True, exist_ok=True)
            (self._cache / f"{key}.json").write_text(json.dumps([digest, reason]))
        return digest, reason


class TritonHistory(History):
    """Operators of definitions that lie beside the history."""

    def __init__(
        self,
        repository: Path,
        cache: Path,
        definitions: DefinitionsVersion,
        suite: str,
        most: int,
        bare: Sequence[str],
    ) -> None:
        super().__init__(repository, cache)
        self._settings = [importlib.metadata.version("triton"), suite, str(most), *bare]
        self._suite, self._most, self._bare = suite, most, bare
        mirror = mirror_of(repository, definitions)
        measured = parse_project(git.read_file(mirror, definitions.sha, "warpwatch.toml")).measured
        assert measured is not None
        self._measured: MeasuredCode = measured
        self._definitions = cache / f"definitions-{definitions.sha}"
        self._sources = Sources(repository, definitions)
        # Files that were imported though they are no sources of the operator, so that their changes are not seen.
        self.uncounted: defaultdict[str, set[str]] = defaultdict(set)
        # Sets of files that were imported, by operator: a change of any other file cannot change what is launched.
        self._imports: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        self._remembered = cache / "imports.json"
        if self._remembered.exists():
            for name, sets in json.loads(self._remembered.read_text()).items():
                self._imports[name] = {tuple(paths) for paths in sets}
        if not self._definitions.exists():
            self._definitions.mkdir(parents=True)
            archive = subprocess.run(
                ["git", "-C", str(mirror), "archive", definitions.sha], check=True, capture_output=True
            )
            subprocess.run(["tar", "x", "-C", str(self._definitions)], check=True, input=archive.stdout)

    def globs(self, operator: str) -> Sequence[str]:
        return self._measured.sources_of(operator)

    def identity(self, sha: str, operator: str) -> Identity | None:
        tree = self._sources.of(sha, operator)
        if tree is None:
            return None
        visible = dict(self.files(sha, self._measured.visible()))
        digest, reason = self._find(operator, visible) or self._compile(operator, visible)
        if reason:
            self.unknown[f"{sha[:9]} {operator}"] = reason
        return Identity(_fingerprint.digest(self.files(sha, self.globs(operator))), tree, digest or None)

    def _key(self, operator: str, files: Iterable[tuple[str, str | None]]) -> str:
        return _fingerprint.digest([self._definitions.name, operator, *self._settings, *files])

    def _find(self, operator: str, visible: Mapping[str, str]) -> tuple[str, str] | None:
        """What is kept of an operator whose imported files are the same, whatever else a child may read."""
        for paths in self._imports[operator]:
            if found := self.kept(self._key(operator, [(path, visible.get(path)) for path in paths])):
                self._note_uncounted(operator, paths)
                return found
        return None

    def _note_uncounted(self, operator: str, imported: Iterable[str]) -> None:
        self.uncounted[operator].update(path for path in imported if not matches(path, self.globs(operator)))

    def _compile(self, operator: str, visible: Mapping[str, str]) -> tuple[str, str]:
        # Imported late, because torch and Triton take seconds and native operators need neither.
        from bench.compiled_launches import compile_in_fork

        with tempfile.TemporaryDirectory(prefix="same-code-") as scratch:
            self.write(visible.items(), Path(scratch))
            root = Path(scratch) / self._measured.path
            compiled = compile_in_fork(root, self._definitions, operator, self._suite, self._most, self._bare)
        if not compiled.imported:
            # The process ended early. Without files the key would be that of every commit.
            return "", compiled.reason
        paths = tuple(str(PurePosixPath(self._measured.path) / path) for path in compiled.imported)
        self._note_uncounted(operator, paths)
        self._imports[operator].add(paths)
        self._remembered.write_text(json.dumps({name: sorted(sets) for name, sets in self._imports.items()}))
        return self.keep(
            self._key(operator, [(path, visible.get(path)) for path in paths]), compiled.digest, compiled.reason
        )


class NativeHistory(History):
    """Native operators of a repository that follows the layout of this one."""

    def __init__(self, repository: Path, cache: Path) -> None:
        super().__init__(repository, cache)
        self._sources = Sources(repository)
        compiler = _toolchain.cuda_compiler(cache)
        if compiler is None:
            raise SystemExit("no CUDA compiler: pip install 'warpwatch[nvcc]'")
        self._nvcc = [compiler.path, *NVCC_FLAGS]

    def globs(self, operator: str) -> Sequence[str]:
        return [f"csrc/{operator}/**", "csrc/common/**"]

    def identity(self, sha: str, operator: str) -> Identity | None:
        parts = self._sources.parts(sha, operator)
        folders = [f"{path}/**" for path in self._sources.paths(sha, operator) if path.startswith("csrc/")]
        files = self.files(sha, folders) if parts is not None else []
        units = [path for path, _ in files if path.endswith(".cu")]
        if parts is None or not units:
            return None
        digests = []
        with tempfile.TemporaryDirectory(prefix="same-code-") as scratch:
            for unit in units:
                key = _fingerprint.digest([unit, *self._nvcc, files])
                digest, reason = self.kept(key) or self._compile(key, unit, files, Path(scratch))
                if reason:
                    self.unknown[f"{sha[:9]} {unit}"] = reason
                digests.append(f"{unit} {digest}" if digest else "")
        return Identity(_fingerprint.digest(files), parts[1], _fingerprint.digest(digests) if all(digests) else None)

    def _compile(self, key: str, unit: str, files: Sequence[tuple[str, str]], folder: Path) -> tuple[str, str]:
        if not (folder / unit).exists():
            self.write(files, folder)
        command = [*self._nvcc, "-gencode=arch=compute_90a,code=sm_90a", "-Icsrc"]
        plain = subprocess.run([*command, "-E", "-Xcompiler", "-P", unit], cwd=folder, capture_output=True)
        # What is the same after the preprocessor need not be compiled again.
        same = hashlib.sha256("\0".join(command).encode() + plain.stdout).hexdigest()[:32]
        found = self.kept(same) if plain.returncode == 0 else None
        if found is None:
            done = subprocess.run([*command, "-c", unit, "-o", "unit.o"], cwd=folder, capture_output=True, text=True)
            if done.returncode == 0:
                codes = _fingerprint.device_code(folder / "unit.o")
                lines = sorted(f"{kernel.symbol} {code.hash}" for kernel, code in codes.items())
                found = self.keep(same, _fingerprint.digest(lines), "")
            else:
                found = "", (done.stderr.strip().splitlines() or ["nvcc failed"])[0][:300]
        return self.keep(key, *found)


def compare(history: History, mirror: Path, commits: Sequence[str], operators: Sequence[str]) -> Counter[str]:
    """Counts operator-commits by the keys of COLUMNS, and prints those in which tree and machine code disagree."""
    count: Counter[str] = Counter()
    for place, sha in enumerate(commits, start=1):
        parent = git.resolve(mirror, f"{sha}^1")
        for operator in operators:
            base, head = history.identity(parent, operator), history.identity(sha, operator)
            if base is None or head is None:
                continue
            same_tree = base.tree == head.tree
            count.update(all=1, text=base.text == head.text, tree=same_tree)
            if base.code is None or head.code is None:
                count["unknown"] += 1
                continue
            same_code = base.code == head.code
            count.update(code=same_code, wrong=same_tree and not same_code, beyond=same_code and not same_tree)
            if same_code != same_tree:
                what = "same code, another tree" if same_code else "SAME TREE, OTHER CODE"
                subject = git.describe(mirror, sha).subject
                print(f"{sha[:9]} {operator}: {what} ({subject[:70]})", flush=True)
        print(f"{place} of {len(commits)} commits: {dict(count)}", file=sys.stderr, flush=True)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, default=ROOT)
    parser.add_argument("--definitions", help="a folder; by default the native operators of the repository are counted")
    parser.add_argument("--operators", required=True, help="separated by commas")
    parser.add_argument("--commits", type=int, default=60)
    parser.add_argument("--suite", default="quick")
    parser.add_argument("--candidates", type=int, default=2, help="compile so many candidates of each autotuner")
    parser.add_argument(
        "--bare",
        default="",
        help="packages whose __init__ does not run, parents first, separated by commas: fewer files are imported, so "
        "that fewer commits are compiled",
    )
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "same-code")
    given = parser.parse_args()
    os.environ.setdefault("TRITON_CACHE_DIR", str(given.cache / "triton"))
    operators = given.operators.split(",")
    url = str(given.repository.resolve())
    mirror = git.mirror_path(url, given.cache)
    if not mirror.exists():
        git.update_mirror(url, given.cache)
    history: History
    triton = None
    if given.definitions is None:
        history = NativeHistory(mirror, given.cache)
    else:
        version = newest_version(parse_source(given.definitions), given.cache)
        history = triton = TritonHistory(
            mirror, given.cache, version, given.suite, given.candidates, list(filter(None, given.bare.split(",")))
        )
    commits = history.commits(operators, given.commits)
    count = compare(history, mirror, commits, operators)
    for what, reason in history.unknown.items():
        print(f"unknown: {what}: {reason}")
    for operator, paths in triton.uncounted.items() if triton is not None else ():
        if paths:
            print(f"imported by {operator}, but no source of it: {' '.join(sorted(paths))}")
    print(" | ".join(["| commits", *COLUMNS.values()]) + " |")
    print(" | ".join([f"| {len(commits)}", *(str(count[key]) for key in COLUMNS)]) + " |")


if __name__ == "__main__":
    main()
