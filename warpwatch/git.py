"""Reads repositories through the git command: mirrors, refs, history, files, worktrees.

Refs come from users. They never reach a shell and never become an option (`--end-of-options`), and only names that git
resolves to a commit are used. Files come from strangers: no program that attributes name is ever started, and git reads
the configuration of its user only where it contacts a host. The module needs only the standard library, because
`warpwatch run` works without a server.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile

from warpwatch.contract.catalogue import CommitInfo as CommitInfo
from warpwatch.contract.commit_ids import short_sha
from warpwatch.destinations import DestinationError, Destinations, UnknownHostError, host_of, uses_proxy

MAX_RANGE = 1000
"""The largest number of commits in one range."""
_SHA = re.compile(r"[0-9a-f]{40}")
_HEAD = "+HEAD:refs/warpwatch/HEAD"
"""A refspec for HEAD, which a mirror does not fetch. Users name it, and a detached HEAD, as in CI, is on no branch."""
FORMAT = "%H%x00%P%x00%an%x00%at%x00%s"
"""Id, parents, author, seconds from 1970 and subject of a commit, as git log prints them."""
_LATEST = 253_402_300_799
"""Seconds from 1970 to the end of the year 9999, the last that Python and PostgreSQL both hold."""
_MIRRORS = "mirrors"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
"""All that a mirror is configured with: measured code can reach it, and git starts programs that files name."""
_ATTRIBUTES = "* !filter !diff !merge !working-tree-encoding\n"
"""Attributes of every file of a mirror, before those of a commit: git writes the bytes that the commit holds. Other
encodings run conversions of the C library that have had holes, and make files four times as large."""
_RESTORED = {"config": _CONFIG, "info/attributes": _ATTRIBUTES}
"""Files of a mirror that git reads before all others, with their contents."""
_PASSED = re.compile("PATH|USER|LOGNAME|TMPDIR")
"""The variables that git always gets."""
_PASSED_TO_REACH = re.compile(
    "HOME|XDG_CONFIG_HOME|SSH_AUTH_SOCK|SSH_ASKPASS|SSL_CERT_FILE|SSL_CERT_DIR|"
    "(GIT_SSH|GIT_SSL|GIT_ASKPASS|GIT_CONFIG_|https?_|no_proxy|HTTPS_|NO_PROXY).*"
)
"""Further variables, for commands that contact a host."""
_REACHING = frozenset({"clone", "fetch", "push", "ls-remote", "remote", "config"})
"""Commands that contact a host, or only print settings. They get the configuration of the user whom the service runs
as, for credentials, proxies, certificates and other addresses (`url.insteadOf`). None of them touches files of a
commit."""
ANSWER_SECONDS = 20.0
"""How long the host of a repository may take to answer at all."""
FETCH_SECONDS = 1800.0
"""How long a clone or fetch from a host that answers may take."""
REQUEST_SECONDS = 300.0
"""The same while a person waits."""
_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=10 -o ServerAliveCountMax=3"
_LOCK_POLL_SECONDS = 0.1
_CHECKOUT_SECONDS = 600.0
_OPTIONS = (
    "safe.directory=*",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.pager=cat",
    "log.showSignature=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "transfer.bundleURI=false",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=30",
)
_ENVIRONMENT = {
    # Prompts would hang a service.
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    # A ref of a repository could put other contents in place of those that an id names.
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}
"""Environment variables of every git command."""


ANY_NETWORK = Destinations(is_private_allowed=True)
"""Destinations of fetches by workers and commands: the server, or the person at the keyboard, chose the address."""


class GitError(RuntimeError):
    """A git command failed; the message is for people."""


class UnreachableError(GitError):
    """The host of a repository does not answer, or refuses: an outage, as far as anybody can tell from here."""


class UnknownRefError(GitError):
    """A ref or range names no commit in the repository."""


def git(
    *arguments: str,
    cwd: Path | None = None,
    timeout: float = 120,
    text: str | None = None,
    config: Sequence[str] = (),
    index: Path | None = None,
    environment: Mapping[str, str] | None = None,
    memory_bytes: int | None = None,
) -> str:
    """The output of one git command with `text` on its standard input; raises GitError with the end of git's message.

    timeout: seconds. config: settings of git for this command, as `name=value`. index: in place of the checkout's own.
    environment: further variables. memory_bytes: address space that it may take, where the system can limit it.
    """
    executable = shutil.which("git")
    if executable is None:
        raise GitError("git is not installed; install it (Debian: apt install git) and try again")
    if cwd is not None and cwd.parent.name == _MIRRORS:
        _restore_config(cwd)
    options = [word for option in (*_OPTIONS, *config) for word in ("-c", option)]
    try:
        process = subprocess.Popen(
            [executable, *options, *arguments],
            cwd=cwd,
            env=_environment(arguments)
            | ({"GIT_INDEX_FILE": str(index)} if index is not None else {})
            | dict(environment or {}),
            stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
    except FileNotFoundError:
        # Another process may not have made the mirror of the repository yet.
        raise GitError(f"git {arguments[0]} needs the folder {cwd}, which does not exist") from None
    if memory_bytes is not None and hasattr(resource, "prlimit"):
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    with process:
        try:
            output, errors = process.communicate(text, timeout)
        except subprocess.TimeoutExpired:
            raise GitError(f"git {arguments[0]} took longer than {timeout:g} s") from None
        finally:
            # With the programs that it started, such as ssh: they would wait for a host that hangs for hours.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise GitError(f"git {arguments[0]} failed: {errors.strip()[-500:] or process.returncode}")
    return output


def _environment(arguments: Sequence[str]) -> dict[str, str]:
    """The environment variables of a git command: no secret of the server, and access to hosts and logins only for a
    command that reaches a host."""
    is_reaching = not _REACHING.isdisjoint(arguments[:1])
    passed = {
        name: value
        for name, value in os.environ.items()
        if _PASSED.fullmatch(name) or (is_reaching and _PASSED_TO_REACH.fullmatch(name))
    }
    if is_reaching:
        # A connection that nobody answers would hang a service. Other protocols are programs of their own.
        return {"GIT_SSH_COMMAND": _SSH} | passed | {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh"} | _ENVIRONMENT
    # Git before 2.32 knows no GIT_CONFIG_GLOBAL, and looks in the home folder.
    return passed | {"GIT_CONFIG_GLOBAL": os.devnull, "HOME": os.devnull, "GIT_ALLOW_PROTOCOL": ""} | _ENVIRONMENT


def _restore_config(mirror: Path) -> None:
    """Undoes what anybody wrote into the configuration and attributes of a mirror, or redirects them to."""
    redirect = mirror / "commondir"
    if redirect.is_symlink() or redirect.exists():
        redirect.unlink()
    if not mirror.is_dir():
        return
    info = mirror / "info"
    if info.is_symlink() or not info.is_dir():
        info.unlink(missing_ok=True)
        info.mkdir(exist_ok=True)
    for name, content in _RESTORED.items():
        path = mirror / name
        if path.is_file() and not path.is_symlink() and path.read_text(errors="replace") == content:
            continue
        # Another thread may do the same, and git may read meanwhile, so the file is replaced in one step.
        with NamedTemporaryFile("w", dir=path.parent, prefix="restored.", delete=False) as file:
            file.write(content)
        Path(file.name).replace(path)


def checkout_settings(root: Path) -> dict[str, str]:
    """Variables with which git reads the files of somebody's checkout as they are, and ignores what its user ignores.

    The configuration of a checkout may come from others, too, so that no filter of it runs.
    """
    keys = git("config", "--list", "--name-only", "-z", cwd=root).split("\0")[:-1]
    drivers = {key.removeprefix("filter.").rpartition(".")[0] for key in keys if key.startswith("filter.")}
    settings = [
        (f"filter.{driver}.{name}", value)
        for driver in sorted(drivers)
        for name, value in (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
    ]
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    ignored = str(Path(folder, "git", "ignore"))
    with suppress(GitError):
        ignored = git("config", "--type=path", "--get", "core.excludesFile", cwd=root).removesuffix("\n")
    settings.append(("core.excludesFile", ignored))
    numbered = {
        f"GIT_CONFIG_{kind}_{number}": text
        for number, setting in enumerate(settings)
        for kind, text in zip(("KEY", "VALUE"), setting, strict=True)
    }
    return {"GIT_CONFIG_COUNT": str(len(settings)), **numbered}


def mirror_path(url: str, home: Path) -> Path:
    return home / _MIRRORS / (hashlib.sha256(url.encode()).hexdigest()[:16] + ".git")


def update_mirror(
    url: str, home: Path, destinations: Destinations = ANY_NETWORK, timeout: float = FETCH_SECONDS
) -> Path:
    """Clones or fetches the bare mirror of `url` below `home`; safe to call from several processes.

    destinations: where git may connect to; GitError names the setting for an address that is refused.
    UnreachableError when the host does not answer within ANSWER_SECONDS, GitError when all takes more than `timeout`
    seconds.
    """
    deadline = time.monotonic() + timeout
    config = _reach(url, destinations)
    path = mirror_path(url, home)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Often it lies in a checkout, whose files `warpwatch try` measures and watches.
    if not (home / ".gitignore").exists():
        (home / ".gitignore").write_text("*\n", encoding="ascii")
    _expect_answer(url, config)
    with _locked(path.with_suffix(".lock"), deadline):
        if not (path / "HEAD").exists():
            partial = path.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            # A local clone would share the files of the source, whose owner may rewrite them.
            words = ("clone", "--quiet", "--mirror", "--no-local", "--template=", "--", url, str(partial))
            git(*words, timeout=_remaining(deadline), config=config)
            git(*_fetch(url), _HEAD, cwd=partial, timeout=_remaining(deadline), config=config)
            git("symbolic-ref", "HEAD", "refs/warpwatch/HEAD", cwd=partial)
            partial.rename(path)
        else:
            refs = ("+refs/*:refs/*", _HEAD)
            git(*_fetch(url, "--prune"), *refs, cwd=path, timeout=_remaining(deadline), config=config)
    return path


def _expect_answer(url: str, config: Sequence[str]) -> None:
    """UnreachableError unless the host answers soon.

    Git has no time limit of its own for a host that takes connections and says nothing, and a fetch of a large
    repository may rightly take half an hour.
    """
    words = ("ls-remote", "--quiet", "--upload-pack", "git-upload-pack", "--", url, "HEAD")
    try:
        git(*words, timeout=ANSWER_SECONDS, config=config)
    except GitError as error:
        raise UnreachableError(str(error)) from error


def named_branches(url: str, destinations: Destinations = ANY_NETWORK) -> dict[str, str]:
    """The branch that each symbolic ref called HEAD names at `url`, by full names: HEAD itself, and in a clone
    refs/remotes/origin/HEAD."""
    words = ("ls-remote", "--quiet", "--symref", "--upload-pack", "git-upload-pack", "--", url, "HEAD")
    try:
        output = git(*words, timeout=ANSWER_SECONDS, config=_reach(url, destinations))
    except GitError as error:
        raise UnreachableError(str(error)) from error
    pairs = (line.removeprefix("ref: ").split("\t") for line in output.splitlines() if line.startswith("ref: "))
    return {ref: branch for branch, ref in pairs}


def _remaining(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def _fetch(url: str, *options: str) -> list[str]:
    """The beginning of a fetch that asks the mirror neither for the address nor for the program at the other end."""
    return ["fetch", "--quiet", "--upload-pack", "git-upload-pack", *options, "--", url]


def fetch_commit(url: str, mirror: Path, sha: str) -> None:
    """Brings one commit (a full id) that no ref holds into a mirror of `url`."""
    config = _reach(url, ANY_NETWORK)
    _expect_answer(url, config)
    git(*_fetch(url), sha, cwd=mirror, timeout=FETCH_SECONDS, config=config)


def _reach(url: str, destinations: Destinations) -> list[str]:
    """Configuration with which git connects to the address that was checked, and to no other that it is sent to."""
    try:
        place = host_of(url)
        if place is None or uses_proxy(place[0], place[1]):
            return []
        scheme, host, port = place
        address = destinations.resolve(host, port)
    except UnknownHostError as error:
        if url.startswith(("http", "git:")):
            raise GitError(str(error)) from None
        return []  # The name may come from the service's own ~/.ssh/config.
    except DestinationError as error:
        raise GitError(str(error)) from None
    if not scheme.startswith("http"):
        return []
    # A name could have another address when git looks it up, and a redirect could lead to another host.
    pinned = [] if ":" in host else [f"http.curloptResolve={host}:{port}:{address}"]
    return [*pinned, "http.followRedirects=false"]


def resolve(mirror: Path, ref: str) -> str:
    """The full id of the commit that `ref` names."""
    try:
        sha = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", cwd=mirror).strip()
    except GitError:
        raise UnknownRefError(
            f"no commit, branch or tag {ref!r} in this repository; push it, or check the spelling"
        ) from None
    if not _SHA.fullmatch(sha):
        raise UnknownRefError(f"{ref!r} names no single commit here")
    return sha


def holds(mirror: Path, sha: str) -> bool:
    """Whether the mirror exists and holds the commit with this full id."""
    if not mirror.is_dir():
        return False
    try:
        return resolve(mirror, sha) == sha
    except UnknownRefError:
        return False


def resolve_range(mirror: Path, text: str) -> list[str]:
    """The commit of a ref, or the commits of `A..B`: first parents, oldest first, without A.

    `ROOT^..B`, where ROOT is a first commit, is everything up to B. Raises UnknownRefError for an empty range and
    GitError for more than MAX_RANGE commits.
    """
    start, head = range_ends(mirror, text)
    if ".." not in text:
        return [head]
    revisions = head if start is None else f"{start}..{head}"
    shas = git("rev-list", "--first-parent", "--reverse", revisions, cwd=mirror).split()
    if not shas:
        raise UnknownRefError(f"{text!r} holds no commits; write the older commit first")
    if len(shas) > MAX_RANGE:
        raise GitError(f"{text!r} holds {len(shas)} commits; ask for at most {MAX_RANGE} at once")
    return shas


def range_ends(mirror: Path, text: str) -> tuple[str | None, str]:
    """Full ids of the commit A that `A..B` excludes, and of B; None for A where nothing is excluded."""
    if ".." not in text:
        return None, resolve(mirror, text)
    low, _, high = text.partition("..")
    head = resolve(mirror, high.removeprefix(".") or "HEAD")
    if low.endswith("^") and describe(mirror, resolve(mirror, low[:-1])).parent_sha is None:
        return None, head
    return resolve(mirror, low or "HEAD"), head


def last_commits(mirror: Path, ref: str, count: int) -> list[str]:
    """The newest `count` first-parent commits up to `ref`, oldest first."""
    sha = resolve(mirror, ref)
    return git("rev-list", "--first-parent", "--reverse", f"--max-count={count}", sha, cwd=mirror).split()


def first_parents(mirror: Path, sha: str) -> list[str]:
    """`sha` (a full id) and its ancestors along first parents, newest first."""
    return git("rev-list", "--first-parent", sha, cwd=mirror).split()


def describe(mirror: Path, sha: str) -> CommitInfo:
    """The commit `sha` (a full id)."""
    return describe_many(mirror, [sha])[0]


def describe_many(mirror: Path, shas: Sequence[str]) -> list[CommitInfo]:
    """The commits `shas` (full ids, parents before children), with a few git calls for any number of commits."""
    if not shas:
        return []  # Without an id, git log would show HEAD.
    output = git("log", "-z", "--no-walk=unsorted", "--stdin", f"--format={FORMAT}", cwd=mirror, text="\n".join(shas))
    ordinals: dict[str, int] = {}
    commits = []
    for sha, parents, author, authored_at, subject in rows(output, 5):
        first, _, others = parents.partition(" ")
        is_next = first in ordinals and not others
        ordinals[sha] = ordinals[first] + 1 if is_next else int(git("rev-list", "--count", sha, cwd=mirror))
        commits.append(CommitInfo(sha, first or None, ordinals[sha], author, instant(authored_at), subject))
    return commits


def rows(output: str, width: int) -> list[tuple[str, ...]]:
    """Fields that each end in NUL, in rows of `width`: names and subjects may hold any other character, line ends of
    Unicode among them."""
    fields = output.split("\0")[:-1]
    return list(zip(*[iter(fields)] * width, strict=True))


def instant(seconds: str) -> datetime:
    """The time of a commit, which its author may set to anything; 1970 where it says none."""
    known = int(seconds) if seconds.lstrip("-").isdigit() else 0
    return datetime.fromtimestamp(min(max(known, 0), _LATEST), UTC)


def merge_base(mirror: Path, sha: str, other: str) -> str:
    """The newest common ancestor of two commits (full ids); UnknownRefError when they share no history."""
    try:
        return git("merge-base", sha, other, cwd=mirror).split()[0]
    except (GitError, IndexError):
        raise UnknownRefError(f"{short_sha(sha)} and {short_sha(other)} have no commit in common") from None


def first_parents_since(mirror: Path, sha: str, oldest: str) -> set[str]:
    """`sha` and its first parents that are no ancestors of `oldest` (full ids); with `oldest`, if it is one of them."""
    listing = git("rev-list", "--ignore-missing", "--first-parent", "--parents", sha, f"^{oldest}", cwd=mirror)
    parents = {own: others[:1] for own, *others in (line.split() for line in listing.splitlines())}
    return parents.keys() | ({oldest} & {sha, *(first for line in parents.values() for first in line)})


def descendants(mirror: Path, sha: str, newest: str) -> set[str]:
    """Every descendant of `sha` up to `newest` (full ids); empty when `newest` does not descend from `sha`."""
    return set(git("rev-list", "--ancestry-path", f"{sha}..{newest}", cwd=mirror).split())


def path(mirror: Path, base: str, head: str) -> list[str]:
    """The commits (full ids) from `base` to `head`, both included, each the parent of the next.

    At a merge it follows the first parent that descends from `base`. Raises GitError when `head` does not descend from
    `base`.
    """
    lines = git("rev-list", "--ancestry-path", "--parents", f"{base}..{head}", cwd=mirror).splitlines()
    parents = {sha: rest for sha, *rest in (line.split() for line in lines)}
    line = [head]
    while line[-1] != base:
        following = [parent for parent in parents.get(line[-1], []) if parent in parents or parent == base]
        if not following:
            raise GitError(f"{short_sha(head)} does not descend from {short_sha(base)}")
        line.append(following[0])
    return line[::-1]


def object_ids(mirror: Path, names: Sequence[str], kind: str | None = None) -> list[str | None]:
    """Object ids of files or folders named `<full commit id>:<path>`, by one git call; None for a missing one.

    kind: "blob" for files and links alone, "tree" for folders alone.
    """
    if not names:
        return []
    output = git("cat-file", "--batch-check=%(objectname) %(objecttype)", cwd=mirror, text="\n".join(names) + "\n")
    pairs = [line.partition(" ") for line in output.splitlines()]
    return [item if _SHA.fullmatch(item) and kind in (None, found) else None for item, _, found in pairs]


def read_file(mirror: Path, sha: str, path: str) -> str | None:
    """The text of `path` at commit `sha`; None when it does not exist."""
    try:
        return git("show", "--end-of-options", f"{sha}:{path}", cwd=mirror)
    except GitError:
        return None


def list_folder(mirror: Path, sha: str, folder: str) -> list[str]:
    """Names directly inside `folder` at commit `sha`; empty when it does not exist."""
    try:
        return git("ls-tree", "--name-only", sha, f"{folder.strip('/')}/", cwd=mirror).split("\n")[:-1]
    except GitError:
        return []


def entries(mirror: Path, sha: str, folder: str) -> dict[str, str]:
    """Object ids by name of the entries of `folder` ("" for the root) at commit `sha`; empty without the folder."""
    try:
        tree = git("ls-tree", f"{sha}:{folder.strip('/')}", cwd=mirror)
    except GitError:
        return {}
    return {name: line.split()[2] for line, name in (entry.split("\t", 1) for entry in tree.splitlines())}


def files_below(mirror: Path, item: str, prefix: str) -> list[tuple[str, str]]:
    """Path and object id of every file below a folder, or of the file itself, given by its object id and path."""
    if git("cat-file", "-t", item, cwd=mirror).strip() == "blob":
        return [(prefix, item)]
    listing = git("ls-tree", "-r", "-z", item, cwd=mirror).split("\0")[:-1]
    start = f"{prefix}/" if prefix else ""
    return [(start + name, line.split()[2]) for line, name in (entry.split("\t", 1) for entry in listing)]


def operator_names(mirror: Path, sha: str, folder: str) -> list[str]:
    """Names of the operators of a commit: Python files in its operator folder whose names begin with no underscore."""
    return _operators(list_folder(mirror, sha, folder))


def operators_in(mirror: Path, tree: str) -> list[str]:
    """Names of the operators in an operator folder, by the object id of its tree."""
    return _operators(git("ls-tree", "--name-only", tree, cwd=mirror).splitlines())


def _operators(paths: list[str]) -> list[str]:
    names = [Path(path).name for path in paths]
    return sorted(name.removesuffix(".py") for name in names if name.endswith(".py") and not name.startswith("_"))


@contextmanager
def empty_worktree(path: Path) -> Iterator[None]:
    """An empty folder for `check_out` and `in_worktree`, removed afterwards; leftovers of a killed process are removed
    first.

    Mirrors know nothing of it. Git's own worktrees are entered there, and a fetch or another checkout that meets an
    entry half written or half removed fails.
    """
    _remove_worktree(path)
    path.mkdir(parents=True)
    try:
        yield
    finally:
        _remove_worktree(path)


def check_out(mirror: Path, path: Path, sha: str, names: Iterable[str] | None = None) -> None:
    """Adds to an `empty_worktree` the files of `sha`: all of them, or what lies at or below these names."""
    if names is None:
        in_worktree(mirror, path, "read-tree", "--reset", "-u", sha)
    elif paths := [f":(top,literal){name}" for name in names]:
        in_worktree(mirror, path, "checkout", "--quiet", sha, "--", *paths)


def in_worktree(mirror: Path, path: Path, *arguments: str, text: str | None = None) -> str:
    """The output of a git command on a folder of files, with an index of its own beside it."""
    where = {"GIT_WORK_TREE": str(path.absolute())}
    return git(*arguments, cwd=mirror, timeout=_CHECKOUT_SECONDS, text=text, index=_index_of(path), environment=where)


def _remove_worktree(path: Path) -> None:
    remove_folder(path)
    index = _index_of(path)
    # A git that was killed leaves its lock, and with it no other can write the index.
    for file in (index, index.with_name(f"{index.name}.lock")):
        file.unlink(missing_ok=True)


def _index_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.index").absolute()


def remove_folder(path: Path) -> None:
    """Removes a folder with files of a commit, as far as that goes."""
    # A thousand folders in each other end the recursion of rmtree, and not that of rm.
    subprocess.run(["rm", "-rf", "--", str(path)], capture_output=True, check=False)


@contextmanager
def _locked(path: Path, deadline: float) -> Iterator[None]:
    """Holds a lock that others may hold; GitError when they do until the deadline."""
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise GitError("another process has been fetching the repository for too long") from None
                time.sleep(_LOCK_POLL_SECONDS)
        yield


EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Git knows it in every repository; a commit without parents is compared with it."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that differs between two commits. added, deleted: numbers of lines, None for a binary file."""

    path: str
    added: int | None
    deleted: int | None


def changed_files(mirror: Path, base: str, head: str, paths: Sequence[str] = ()) -> list[FileChange]:
    """Files that differ between two commits (full ids), by path; only those below `paths` when given."""
    # With -z git does not quote names.
    words = ("diff", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv", "-z", base, head)
    output = git(*words, "--", *_literal(paths), cwd=mirror)
    lines = [line.split("\t", 2) for line in output.split("\0") if line]
    return [FileChange(path, *(int(count) if count.isdigit() else None for count in counts)) for *counts, path in lines]


def commits_touching(mirror: Path, base: str, head: str, paths: Sequence[str]) -> list[str]:
    """The newest 50 commits after `base` up to `head` (full ids) that change a file below `paths`, newest first."""
    return git("rev-list", "--max-count=50", f"{base}..{head}", "--", *_literal(paths), cwd=mirror).split()


def diff(mirror: Path, base: str, head: str, paths: Sequence[str] = ()) -> str:
    """The patch between two commits (full ids), with three lines around each change."""
    options = ("--no-color", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-prefix", "--unified=3")
    return git("diff", *options, base, head, "--", *_literal(paths), cwd=mirror)


def message_body(mirror: Path, sha: str) -> str:
    """The message of a commit (full id) below its subject."""
    return git("log", "-1", "--format=%b", sha, cwd=mirror).strip()


def _literal(paths: Sequence[str]) -> list[str]:
    """Paths that git does not read as patterns."""
    return [f":(literal){path}" for path in paths]
