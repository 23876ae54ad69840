"""Every setting, read from the environment in this one place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

from warpwatch.contract.words import AccountRole
from warpwatch.destinations import Destinations, Network, is_loopback, is_trustworthy, parse_private_hosts

ISOLATIONS = ("auto", "full", "user", "network", "none")
"""The first is the default: the strongest with namespaces that the host allows."""
FORK_ISOLATIONS = ("user", "full", "network", "none")
"""The first is the default."""
PROVIDER_SCOPES = "openid email profile"
LOG_FORMATS = ("text", "json")
"""The first is the default."""
PUBLIC_ACCESS = ("off", "read")
"""The first is the default."""


class SettingError(ValueError):
    """A setting in the environment cannot be used; the message names the variable and the remedy."""


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that Warpwatch reads, as docs/reference/settings.md lists it."""

    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable(
        "WARPWATCH_HOME",
        "`.warpwatch`",
        "data directory: embedded database, mirrors, worktrees, builds, logs; `warpwatch.load` builds in "
        "`~/.cache/warpwatch` where it is unset",
    ),
    Variable("WARPWATCH_HOST", "`127.0.0.1`", "address that the server listens on"),
    Variable("WARPWATCH_PORT", "`8321`", "port that the server listens on, 1 to 65535"),
    Variable("WARPWATCH_TOKEN", "none", "token that callers must send; required on any address but loopback"),
    Variable(
        "WARPWATCH_PUBLIC",
        "`off`",
        "`read` lets anybody read the pages, JSON and badges of repositories marked public, see publishing.md; needs "
        "`WARPWATCH_TOKEN`",
    ),
    Variable(
        "WARPWATCH_PUBLIC_REQUESTS",
        "`300`",
        "requests that one address without a token may send a minute, 1 to 1000000; of all of them, 20 times as many",
    ),
    Variable(
        "WARPWATCH_OIDC_ISSUER",
        "none",
        "OpenID provider that people sign in at, such as `https://id.example/realms/acme`; see security.md",
    ),
    Variable("WARPWATCH_OIDC_CLIENT_ID", "none", "what the provider calls this server"),
    Variable("WARPWATCH_OIDC_CLIENT_SECRET", "none", "secret of that client; none for a public client"),
    Variable("WARPWATCH_OIDC_CLIENT_SECRET_FILE", "none", "file that holds the secret instead"),
    Variable(
        "WARPWATCH_OIDC_ROLES",
        "none",
        "who may sign in, and the role of each, the strongest counts: groups, verified e-mail domains, or `*` for "
        "everybody, as in `@acme.example=viewer,kernels=submitter,leads=administrator`",
    ),
    Variable("WARPWATCH_OIDC_SCOPES", "`openid email profile`", "scopes that the provider is asked for"),
    Variable(
        "WARPWATCH_PRIVATE_HOSTS",
        "none",
        "hosts and networks on private addresses that repositories and commit statuses may be at, such as "
        "`git.internal,10.1.0.0/16`; a server on a loopback address without a token reaches all of them",
    ),
    Variable(
        "WARPWATCH_PROXIES",
        "none",
        "addresses and networks of the reverse proxies in front of the server, such as `127.0.0.1,10.0.0.0/24`: their "
        "`X-Forwarded-For` and `X-Forwarded-Proto` are believed, nobody else's",
    ),
    Variable("WARPWATCH_DATABASE_URL", "embedded server", "URL of a PostgreSQL ≥ 15"),
    Variable(
        "WARPWATCH_WORKER_KEY",
        "none",
        "default of `warpwatch worker --key`; a server accepts it from its start, as `local`. On a loopback "
        "address it makes one in `WARPWATCH_HOME` for the workers of its machine",
    ),
    Variable("WARPWATCH_URL", "`http://127.0.0.1:PORT`", "where the command line finds the server"),
    Variable("WARPWATCH_LEASE", "`15`", "seconds after which a silent worker loses its job, 1 to 3600"),
    Variable(
        "WARPWATCH_CASE_TIMEOUT",
        "`120`",
        "seconds that one variant may take for one case, 0.1 to 86400; an operator may ask for up to ten times as much",
    ),
    Variable(
        "WARPWATCH_BUILD_TIMEOUT",
        "`3600`",
        "seconds that the build of a library, package or program may take, 0.1 to 86400",
    ),
    Variable(
        "WARPWATCH_PROGRAM_TIMEOUT", "`600`", "seconds that one run of a benchmark program may take, 0.1 to 86400"
    ),
    Variable(
        "WARPWATCH_MEMORY_GB", "three quarters of the machine's", "GiB of memory that a measured process may take"
    ),
    Variable(
        "WARPWATCH_SCRATCH_GB", "a quarter of the machine's memory", "GiB of temporary files of a measured process"
    ),
    Variable(
        "WARPWATCH_ISOLATION",
        "`auto`",
        "how kernel code is confined: `full`, `user`, `network` or `none`, see security.md; `auto` is the stronger of "
        "`full` and `user` that the host allows, and no less than the data directory had before",
    ),
    Variable(
        "WARPWATCH_VISIBLE",
        "none",
        "files and folders that kernel code may read beside what it needs, such as `/data/models:/apps/gcc-14`; see "
        "security.md",
    ),
    Variable(
        "WARPWATCH_FORK_ISOLATION",
        "`user`",
        "weakest isolation in which a worker runs commits that no branch of their repository holds, such as those of "
        "forks: `full`, `user`, `network` or `none`",
    ),
    Variable(
        "WARPWATCH_TRIAL_SHARE",
        "`0.2`",
        "share of a device's time that trials of suspicions may take while other work waits, 0 to 1; what somebody "
        "waits for, and an idle device, have no such limit",
    ),
    Variable(
        "WARPWATCH_PATCH_DAYS",
        "`7`",
        "days after its last use that a patch of `warpwatch try --server` is deleted with its results, 0.01 to 365",
    ),
    Variable(
        "WARPWATCH_DISK_RESERVE_GB",
        "`1`",
        "GiB that stay free in `WARPWATCH_HOME`: with less, workers run no job, and the server takes no work",
    ),
    Variable("WARPWATCH_DATABASE_GB", "none", "GiB that the database may take; the server takes no work above that"),
    Variable(
        "WARPWATCH_LOG_FORMAT",
        "`text`",
        "how server and workers write their logs: `text`, or `json` with one object per line, the ids of requests and "
        "jobs, and a line per request",
    ),
    Variable("WARPWATCH_GITHUB_APP_ID", "none", "id of the GitHub App that the server is, see forge.md"),
    Variable("WARPWATCH_GITHUB_APP_KEY", "none", "file with the private key of the GitHub App"),
    Variable("WARPWATCH_GITHUB_API", "`https://api.github.com`", "where the GitHub App is asked; of GitHub Enterprise"),
    Variable("WARPWATCH_FORGE_TOKEN", "none", "default of `warpwatch forge set --token`"),
    Variable(
        "WARPWATCH_TELEMETRY",
        "`off`",
        "`on` sends traces by OpenTelemetry to `OTEL_EXPORTER_OTLP_ENDPOINT`; needs the extra `telemetry`",
    ),
    Variable(
        "WARPWATCH_CHECK_FIGURES",
        "`off`",
        "for those who change charts: `on` checks each by the schema of Plotly before a page shows it, and answers 500 "
        "where it does not fit",
    ),
    Variable("WARPWATCH_WEBHOOK_SECRET", "none", "default of `warpwatch repository set --webhook-secret`"),
    Variable("WARPWATCH_STATUS_TOKEN", "none", "default of `warpwatch repository set --status-token`"),
    Variable("WARPWATCH_CHANNEL_SECRET", "none", "default of `warpwatch channel add --secret`"),
)


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """The OpenID provider that people sign in at. roles: of a group, of an e-mail domain such as `@acme.example`, or of
    everybody (`*`)."""

    issuer: str
    client_id: str
    client_secret: str | None
    roles: tuple[tuple[str, AccountRole], ...]
    scopes: str = PROVIDER_SCOPES


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of VARIABLES that are not only defaults of one command.

    home: an absolute path.
    database_url: None means the embedded server in `home`.
    token: None means that none is asked for.
    is_public: whether anybody may read the repositories that are marked public.
    public_requests: that one address without a token may send a minute.
    worker_key: a key of workers that the server accepts from its start; None for none.
    lease_seconds: a worker renews its lease every fifth of it.
    memory_bytes: None means three quarters of the machine's.
    scratch_bytes: None means a quarter of the machine's memory.
    isolation: one of ISOLATIONS; see worker.sandbox.
    visible: files and folders that children may read, beside those that they need.
    fork_isolation: the weakest isolation in which a worker runs commits that no branch holds.
    trial_share: of a device's time, for trials while other work waits.
    patch_days: how long a patch is kept after its last use.
    private_hosts: see warpwatch.destinations.parse_private_hosts.
    proxies: whose X-Forwarded headers are believed.
    log_format: one of LOG_FORMATS.
    disk_reserve_bytes: what stays free in `home`.
    database_bytes: None means that the database may grow.
    github_app_id, github_app_key: None where the server is no GitHub App. The app's key signs for github_api alone, so
    no user may choose that.
    has_telemetry: whether traces are sent.
    check_figures: whether charts are checked by the schema of Plotly.
    provider: None means that nobody signs in at an OpenID provider.
    """

    home: Path
    host: str = "127.0.0.1"
    port: int = 8321
    database_url: str | None = None
    token: str | None = None
    is_public: bool = False
    public_requests: int = 300
    worker_key: str | None = None
    server_url: str = "http://127.0.0.1:8321"
    lease_seconds: float = 15.0
    case_timeout_seconds: float = 120.0
    build_timeout_seconds: float = 3600.0
    program_timeout_seconds: float = 600.0
    memory_bytes: int | None = None
    scratch_bytes: int | None = None
    isolation: str = "auto"
    visible: tuple[Path, ...] = ()
    fork_isolation: str = "user"
    trial_share: float = 0.2
    patch_days: float = 7.0
    private_hosts: str = ""
    proxies: tuple[Network, ...] = ()
    log_format: str = "text"
    disk_reserve_bytes: int = 2**30
    database_bytes: int | None = None
    github_app_id: str | None = None
    github_app_key: Path | None = None
    github_api: str = "https://api.github.com"
    provider: ProviderSettings | None = None
    has_telemetry: bool = False
    check_figures: bool = False

    @property
    def local_url(self) -> str:
        """The address of the server for programs on its machine."""
        host = f"[{self.host}]" if ":" in self.host.strip("[]") and "[" not in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def destinations(self) -> Destinations:
        """Where the service may connect to when somebody else names the address."""
        # Only people of this machine talk to such a server, and they reach its network without it. A token on loopback
        # says that a reverse proxy lets others in.
        return Destinations(self.token is None and is_loopback(self.host), *parse_private_hosts(self.private_hosts))


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the environment; SettingError names a variable that cannot be used."""
    port = int(_number(environ, "WARPWATCH_PORT", 8321, low=1, high=65535))
    host = environ.get("WARPWATCH_HOST", "127.0.0.1")
    memory = _number(environ, "WARPWATCH_MEMORY_GB", 0, low=0, high=1e6)
    scratch = _number(environ, "WARPWATCH_SCRATCH_GB", 0, low=0, high=1e6)
    database = _number(environ, "WARPWATCH_DATABASE_GB", 0, low=0, high=1e6)
    reserve = _number(environ, "WARPWATCH_DISK_RESERVE_GB", 1, low=0, high=1e6)
    return Settings(
        home=Path(environ.get("WARPWATCH_HOME", ".warpwatch")).absolute(),
        host=host,
        port=port,
        database_url=environ.get("WARPWATCH_DATABASE_URL") or None,
        token=environ.get("WARPWATCH_TOKEN") or None,
        is_public=_choice(environ, "WARPWATCH_PUBLIC", PUBLIC_ACCESS) == "read",
        public_requests=int(_number(environ, "WARPWATCH_PUBLIC_REQUESTS", 300, low=1, high=1e6)),
        worker_key=environ.get("WARPWATCH_WORKER_KEY") or None,
        server_url=environ.get("WARPWATCH_URL", f"http://127.0.0.1:{port}").rstrip("/"),
        lease_seconds=_number(environ, "WARPWATCH_LEASE", 15, low=1, high=3600),
        case_timeout_seconds=_number(environ, "WARPWATCH_CASE_TIMEOUT", 120, low=0.1, high=86400),
        build_timeout_seconds=_number(environ, "WARPWATCH_BUILD_TIMEOUT", 3600, low=0.1, high=86400),
        program_timeout_seconds=_number(environ, "WARPWATCH_PROGRAM_TIMEOUT", 600, low=0.1, high=86400),
        memory_bytes=int(memory * 2**30) or None,
        scratch_bytes=int(scratch * 2**30) or None,
        isolation=_choice(environ, "WARPWATCH_ISOLATION", ISOLATIONS),
        visible=_paths(environ, "WARPWATCH_VISIBLE"),
        fork_isolation=_choice(environ, "WARPWATCH_FORK_ISOLATION", FORK_ISOLATIONS),
        trial_share=_number(environ, "WARPWATCH_TRIAL_SHARE", 0.2, low=0, high=1),
        patch_days=_number(environ, "WARPWATCH_PATCH_DAYS", 7, low=0.01, high=365),
        private_hosts=_hosts(environ, "WARPWATCH_PRIVATE_HOSTS"),
        proxies=_networks(environ, "WARPWATCH_PROXIES"),
        log_format=_choice(environ, "WARPWATCH_LOG_FORMAT", LOG_FORMATS),
        disk_reserve_bytes=int(reserve * 2**30),
        database_bytes=int(database * 2**30) or None,
        github_app_id=environ.get("WARPWATCH_GITHUB_APP_ID") or None,
        github_app_key=Path(key).absolute() if (key := environ.get("WARPWATCH_GITHUB_APP_KEY")) else None,
        github_api=(environ.get("WARPWATCH_GITHUB_API") or "https://api.github.com").rstrip("/"),
        provider=_provider(environ),
        has_telemetry=_choice(environ, "WARPWATCH_TELEMETRY", ("off", "on")) == "on",
        check_figures=_choice(environ, "WARPWATCH_CHECK_FIGURES", ("off", "on")) == "on",
    )


def free_bytes(folder: Path) -> int:
    """Free space of the disk of `folder`, which is made when something is put there."""
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def library_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Where `warpwatch.load` and `warpwatch kron` keep libraries: with those of jobs where WARPWATCH_HOME is set, else
    in the user's cache folder, as a program may run in any current folder."""
    return _own_folder(environ) / "builds"


def trace_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where `warpwatch kron` writes traces unless it is told a folder; see `library_cache`."""
    return _own_folder(environ) / "kron"


def _own_folder(environ: Mapping[str, str]) -> Path:
    home = environ.get("WARPWATCH_HOME")
    return Path(home).absolute() if home else user_cache(environ)


def user_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Where all services and programs of a user keep what takes long to make."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "warpwatch").absolute()


def _provider(environ: Mapping[str, str]) -> ProviderSettings | None:
    issuer, client_id = environ.get("WARPWATCH_OIDC_ISSUER"), environ.get("WARPWATCH_OIDC_CLIENT_ID")
    if not issuer:
        return None
    if not is_trustworthy(issuer):
        raise SettingError(f"WARPWATCH_OIDC_ISSUER={issuer!r} must begin with https://; http is for 127.0.0.1 alone")
    if not client_id:
        raise SettingError("WARPWATCH_OIDC_ISSUER needs WARPWATCH_OIDC_CLIENT_ID; register this server at the provider")
    secret, file = environ.get("WARPWATCH_OIDC_CLIENT_SECRET"), environ.get("WARPWATCH_OIDC_CLIENT_SECRET_FILE")
    if file and not secret:
        try:
            secret = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            raise SettingError(f"WARPWATCH_OIDC_CLIENT_SECRET_FILE={file} cannot be read: {error}") from None
    roles = tuple(_role(entry) for entry in environ.get("WARPWATCH_OIDC_ROLES", "").split(",") if entry.strip())
    if not roles:
        raise SettingError(
            "WARPWATCH_OIDC_ISSUER needs WARPWATCH_OIDC_ROLES, or nobody could sign in; "
            "set it to something like @acme.example=viewer,kernels=submitter"
        )
    scopes = environ.get("WARPWATCH_OIDC_SCOPES") or PROVIDER_SCOPES
    return ProviderSettings(issuer.rstrip("/"), client_id, secret or None, roles, scopes)


def _role(entry: str) -> tuple[str, AccountRole]:
    who, _, role = (part.strip() for part in entry.partition("="))
    if not who or role not in list(AccountRole):
        raise SettingError(
            f"WARPWATCH_OIDC_ROLES: {entry.strip()!r} is not WHO=ROLE; roles are {', '.join(AccountRole)}"
        )
    return who, AccountRole(role)


def _hosts(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "")
    try:
        parse_private_hosts(text)
    except ValueError as error:
        raise SettingError(
            f"{name}: {error}; set it to names such as git.internal and networks such as 10.1.0.0/16"
        ) from None
    return text


def _paths(environ: Mapping[str, str], name: str) -> tuple[Path, ...]:
    """Files and folders that are there, separated as in PATH."""
    paths = tuple(Path(entry) for entry in environ.get(name, "").split(os.pathsep) if entry)
    for path in paths:
        if not path.is_absolute() or path.resolve() == Path("/") or not path.exists():
            raise SettingError(
                f"{name}: {str(path)!r} is no file or folder that can be shown; set it to absolute paths other than /, "
                f"separated by {os.pathsep!r}"
            )
    return paths


def _networks(environ: Mapping[str, str], name: str) -> tuple[Network, ...]:
    try:
        return tuple(
            ip_network(entry.strip(), strict=False) for entry in environ.get(name, "").split(",") if entry.strip()
        )
    except ValueError as error:
        raise SettingError(f"{name}: {error}; set it to addresses and networks such as 127.0.0.1,10.0.0.0/24") from None


def _choice(environ: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = environ.get(name) or choices[0]
    if value not in choices:
        raise SettingError(f"{name}={value!r} is none of {', '.join(choices)}; set it to one of them or unset it")
    return value


def _number(environ: Mapping[str, str], name: str, default: float, *, low: float, high: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise SettingError(
            f"{name}={text!r} is not a number; set it between {low:g} and {high:g} or unset it"
        ) from None
    if not low <= value <= high:
        raise SettingError(f"{name}={text} is out of range; set it between {low:g} and {high:g} or unset it")
    return value
