"""What a commit's native sources try against compilers and linker, and through them: files of the host and of other
commits, plugins and settings, the disk, and the process that builds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.worker.conftest import Diary
from tests.worker.test_building import SOURCE, make, spoil
from tests.worker.test_building import compiler as compiler
from tests.worker.test_building import root as root
from tests.worker.test_building import store as store
from warpwatch import native
from warpwatch.contract.words import Status
from warpwatch.project import ProjectError, parse_project
from warpwatch.settings import Settings
from warpwatch.worker import sandbox
from warpwatch.worker.building import BuildRequest, LibraryStore, build, is_name
from warpwatch.worker.host import Host

FOLDERS = ("worktrees", "mirrors", "libraries", "jit", "bytecode", "builds", "peaks", "logs")
"""Folders of the worker, of which a child sees its own alone."""


def is_shut_in(home: Path) -> bool:
    return Host(Settings(home=home), "cpu").confinement().has_namespaces


# Files


@pytest.fixture
def home(root: Path) -> Path:
    """The worker's home folder, with something of others in each of its folders."""
    for name in FOLDERS:
        secret = root.parent / name / "other" / "secret.h"
        secret.parent.mkdir(parents=True)
        secret.write_text("#define SECRET 1\n")
    return root.parent


def test_sources_include_nothing_of_other_commits(root: Path, home: Path, store: LibraryStore) -> None:
    if not is_shut_in(home):
        pytest.skip("this host allows no mount namespace")
    others = [str(home / name / "other" / "secret.h") for name in FOLDERS]
    # The compiler looks at an absolute path whatever its folders are, and follows links.
    (root / "csrc" / "plain" / "link.h").symlink_to(others[0])
    own = str(root / "csrc" / "plain" / "plain.cpp")
    paths = [*others, "plain/link.h", own]
    looks = [f'#if __has_include("{path}")\n#warning reached {path}\n#endif' for path in paths]
    (root / "csrc" / "plain" / "plain.cpp").write_text("\n".join([SOURCE, *looks]))
    reply = make(root, store).reply
    assert reply.status is Status.OK, reply.log
    assert [line for line in reply.log.splitlines() if "warning: #warning reached" in line and own not in line] == []
    assert f"reached {own}" in reply.log, "so a file that can be reached is found"


def test_an_assembler_fills_its_own_folder_alone(root: Path, store: LibraryStore) -> None:
    if not is_shut_in(store.folder.parent):
        pytest.skip("this host allows no mount namespace")
    (root / "csrc" / "plain" / "plain.cpp").write_text('asm(".data\\n.space 1<<28");')
    confinement = Host(Settings(home=store.folder.parent, scratch_bytes=2**25), "cpu").confinement()
    reply = build(BuildRequest(root, "csrc", "plain", "cpu"), store, confinement, 60, Diary()).reply
    assert reply.status is Status.BUILD_FAILED
    assert "No space left on device" in reply.log
    assert not store.folder.exists()


# Settings


def key_of(root: Path, cache: Path, operator: str = "plain") -> native.Built:
    with native.configured(root / "csrc", cache, "cpu"):
        return native.find_key(operator)


@pytest.mark.parametrize(
    "name",
    [
        *("build.ninja", ".ninja_log", ".ninja_deps", "plain/build.ninja", "plain/specs", "plain/.gdbinit"),
        *("common/answer.h.gch", "common/cstdint", "plain/module.modulemap", "plain/nvcc.profile", "plain/@flags"),
        *("plain/library.so", "plain/plain.cpp.o", "plain/libtorch.so", "plain/plain.ld", "compilers.json"),
    ],
)
def test_nothing_but_sources_and_headers_is_an_input_of_compilers(root: Path, tmp_path: Path, name: str) -> None:
    """No precompiled header, module map, linker script, log of ninja or settings of a tool: they are not copied."""
    honest = key_of(root, tmp_path / "cache")
    (root / "csrc" / name).write_text("planted")
    assert key_of(root, tmp_path / "cache") == honest


@pytest.mark.parametrize(
    "name",
    [
        "a\n  command = touch planted\nb.cpp",
        *("a$(touch planted).cpp", "`touch planted`.cpp", 'a";touch planted;".cpp', "a;touch planted;.cpp"),
        *("a|touch planted.cpp", "a\\b.cpp", "a\x1b]0;title\x07.cpp", os.fsdecode(b"a\xff.cpp"), "a&b.h", "a>b.h"),
    ],
)
def test_the_name_of_a_source_is_no_command(root: Path, tmp_path: Path, name: str) -> None:
    """A line end begins a rule of ninja, and nvcc hands names to a shell."""
    (root / "csrc" / "plain" / name).write_text("")
    built = key_of(root, tmp_path / "cache")
    assert built.status == "build_failed"
    assert "rename it" in built.log
    built.log.encode()
    assert built.log.isprintable()


def test_a_source_whose_name_is_a_command_runs_nothing(root: Path, store: LibraryStore) -> None:
    (root / "csrc" / "plain" / "a\nrule x\n  command = touch planted; kill -9 -1\nbuild all: x\n.cpp").write_text("")
    reply = make(root, store).reply
    assert (reply.status, "rename it" in reply.log + reply.message) == (Status.BUILD_FAILED, True)


def test_usual_names_of_sources_are_built(root: Path, tmp_path: Path) -> None:
    for name in ("a b.cpp", "größe.cpp", "x-y_z+1,2=3@4%5~6#7.cpp", "deep/er/(a).h"):
        path = root / "csrc" / "plain" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert key_of(root, tmp_path / "cache").status == "ok"


@pytest.mark.parametrize("name", ["@flags", "-fplugin=x", "-specs=x", "a\nb", "a b", "$(id)", ".", "..", "a/b", ""])
def test_the_name_of_an_operator_is_no_option(name: str) -> None:
    """It begins the names of objects, which the linker reads: `@flags/x.o` would be a file of options."""
    assert not is_name(name)


@pytest.mark.parametrize("key", ["cxxflags", "nvccflags", "compiler", "environment", "plugins", "linker"])
def test_a_commit_chooses_no_flags(key: str) -> None:
    with pytest.raises(ProjectError, match=f"unknown key '{key}'"):
        parse_project(f'{key} = "-fplugin=evil.so -B. -wrapper ./evil"')


COMPILERS = (
    *(
        "CPATH",
        "CPLUS_INCLUDE_PATH",
        "C_INCLUDE_PATH",
        "LIBRARY_PATH",
        "COMPILER_PATH",
        "GCC_EXEC_PREFIX",
        "COLLECT_GCC",
    ),
    *("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "CXXFLAGS", "CFLAGS", "LDFLAGS", "NVCC_APPEND_FLAGS", "MAKEFLAGS"),
    *("NVCC_PREPEND_FLAGS", "NVCC_CCBIN", "CUDAHOSTCXX", "CCC_OVERRIDE_OPTIONS", "LD_RUN_PATH", "GNUTARGET", "TAPE"),
)
PROGRAMS = (
    *(
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_DEBUG_OUTPUT",
        "GCONV_PATH",
        "LOCPATH",
        "NLSPATH",
        "MALLOC_TRACE",
        "BASH_ENV",
        "ENV",
    ),
    *("PYTHONSTARTUP", "PYTHONHOME", "PYTHONINSPECT", "PYTHONPYCACHEPREFIX", "PYTHONBREAKPOINT", "PYTHONWARNINGS"),
    *(
        "GIT_CONFIG_GLOBAL",
        "GIT_SSH_COMMAND",
        "SSH_AUTH_SOCK",
        "DBUS_SESSION_BUS_ADDRESS",
        "DOCKER_HOST",
        "https_proxy",
    ),
    *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"),
    *("TORCH_LOGS", "TRITON_HOME", "TORCH_DISTRIBUTED_DEBUG", "KINETO_CONFIG", "WARPWATCH_TOKEN", "PGPASSWORD"),
)


@pytest.mark.parametrize("names", [COMPILERS, PROGRAMS], ids=["compilers", "programs"])
def test_no_variable_of_the_worker_steers_what_a_child_starts(names: tuple[str, ...]) -> None:
    environment = sandbox.environment(Path("/temp"), dict.fromkeys(names, "planted") | {"PATH": "/usr/bin"})
    assert "planted" not in environment.values()


# The process that builds


def test_a_compiler_does_not_answer_for_the_process_that_builds(
    root: Path, store: LibraryStore, compiler: Path
) -> None:
    """It runs as the same user, and would say that the machine code is that of before."""
    forged = '{"id": 2, "reply": {"status": "ok", "code_hash": "innocent"}}'
    loop = f"for f in /proc/[0-9]*/fd/*; do case $(readlink $f) in pipe:*) echo '{forged}' > $f;; esac; done"
    spoil(compiler, f"({loop}) 2>/dev/null; true")
    reply = make(root, store).reply
    assert "innocent" not in reply.code_hash
    assert reply.status is Status.OK, "nothing was written that would have to be noticed"
    assert reply.code_hash != ""


def test_a_compiler_that_kills_everything_fails_its_own_build(root: Path, store: LibraryStore, compiler: Path) -> None:
    if not is_shut_in(store.folder.parent):
        pytest.skip("this host has no process namespace to give")
    spoil(compiler, "kill -9 -1")
    assert make(root, store).reply.status is Status.BUILD_FAILED
    assert not store.folder.exists()
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n')
    assert make(root, store).reply.status is Status.OK
