"""The closed lists: states, kinds, verdicts."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How one variant fared on one case.

    unreadable: a program ended well, and its results cannot be read.
    missing_dependency: the operator or what it measures imports a module that the interpreter lacks.
    """

    OK = "ok"
    WRONG = "wrong"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    BUILD_FAILED = "build_failed"
    UNREADABLE = "unreadable"
    MISSING_DEPENDENCY = "missing_dependency"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"


class TradeKind(StrEnum):
    """What a commit changed beside a time. determinism: whether results differ from call to call. batch: whether rows
    depend on the rows beside them. kept: memory between forward and backward. code: machine code of the library.
    compile, load, first_call: what is waited for once. moved: work between the forward and the backward pass."""

    ACCURACY = "accuracy"
    DETERMINISM = "determinism"
    BATCH = "batch"
    MEMORY = "memory"
    KEPT = "kept"
    CODE = "code"
    ENERGY = "energy"
    COMPILE = "compile"
    LOAD = "load"
    FIRST_CALL = "first_call"
    MOVED = "moved"


class BatchState(StrEnum):
    """Whether the bits of a row of a result depend on the rows beside it in the batch. None of them is a failure."""

    INVARIANT = "invariant"
    DEPENDENT = "dependent"
    NOT_APPLICABLE = "not_applicable"


NO_FAILURE = frozenset({Status.OK, Status.UNSUPPORTED, Status.SKIPPED})
"""The statuses that name no failure of a variant."""


class StepCause(StrEnum):
    """Why the line of a series steps. code: a commit. toolchain: driver, compiler, packages or kernel. both: these two.
    method: the protocol by which it is timed. card: the physical device. noise: no change is shown, or code and
    environment are the same on both sides. unknown: several of them changed at once, or nothing told them apart."""

    CODE = "code"
    TOOLCHAIN = "toolchain"
    BOTH = "both"
    METHOD = "method"
    CARD = "card"
    NOISE = "noise"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why a job, a run or a comparison has no number. A message beside it is for people; nothing is decided by it.

    unchanged (job): the sources are those of a commit that was measured. base_failed (comparison): the base could not
    be measured, which says nothing about the head. interpreter_mismatch (job, run): the two commits ask for different
    interpreters, so they cannot be compared. control_moved (comparison): the base differed from itself, so the rounds
    show nothing. control_missed (comparison): a wait that was added to the base was not found, so the rounds exclude
    nothing. unfit_device (job, run): the device was busy, throttled or too hot to be
    measured on. git_unreachable, disk_full, host_fault (job, run): an outage of the repository's host, of the worker's
    disk, or of the worker's machine otherwise. internal_error (job, run): an error of Warpwatch itself. unstorable
    (job, run): the results hold what the database cannot. worker_lost (job, run): the worker fell silent while it ran
    the job. missing_dependency (job, run): the operator imports a module that the interpreter lacks, and no earlier
    commit says which results that leaves out. unusable_definitions (job, run): the definitions do not fit this commit,
    or cannot be read. incomplete_commit (job, run): the commit needs a submodule, or files that git LFS keeps
    elsewhere. image_refused (job, run): the worker does not allow the container image that the commit asks for, or
    cannot confine a child in it. image_missing (job, run): the worker cannot get that image, or has no podman.
    """

    UNCHANGED = "unchanged"
    BASE_FAILED = "base_failed"
    INTERPRETER_MISMATCH = "interpreter_mismatch"
    CONTROL_MOVED = "control_moved"
    CONTROL_MISSED = "control_missed"
    UNFIT_DEVICE = "unfit_device"
    GIT_UNREACHABLE = "git_unreachable"
    DISK_FULL = "disk_full"
    HOST_FAULT = "host_fault"
    INTERNAL_ERROR = "internal_error"
    UNSTORABLE = "unstorable"
    WORKER_LOST = "worker_lost"
    MISSING_DEPENDENCY = "missing_dependency"
    UNUSABLE_DEFINITIONS = "unusable_definitions"
    INCOMPLETE_COMMIT = "incomplete_commit"
    IMAGE_REFUSED = "image_refused"
    IMAGE_MISSING = "image_missing"


OUTAGES = frozenset({Reason.GIT_UNREACHABLE, Reason.DISK_FULL, Reason.HOST_FAULT})
"""Reasons that say nothing about the job: a run that ends with one does not count as an attempt."""
HOST_REASONS = frozenset({Reason.DISK_FULL, Reason.HOST_FAULT, Reason.UNFIT_DEVICE, Reason.INTERNAL_ERROR})
"""Reasons that speak against the worker: after several runs in a row that end with one, it pauses."""


class Fault(StrEnum):
    """Fault of a variant. A fault is about subjects, which are named in parentheses.

    wrong_values (tensors). wrong_form: number, type, shape, dtype or device (tensors). missing_gradient (tensors).
    modified_input (inputs). overwritten_result: by the next call (tensors). shared_result: two calls return the same
    memory (tensors). unfinished: work goes on after the call has returned (tensors, or threads). other_stream: work on
    a stream that the current one does not wait for. lazy_result: computed when the result is read. cached_result: kept
    from other inputs, or from the replay before. skipped_launch: left out while a CUDA graph is captured.
    prepared_answer: computed by `prepare`. times_disagree: one way to time a call contradicts another (metrics).
    searched_memory: found or altered in the harness's memory (what was altered). detected_timer: right only when
    nothing times the variant. unwritten_result. reduced_precision (precisions). replaced_function: of the harness or
    torch (functions). changed_setting: of the process (settings). out_of_bounds: writes outside its memory.
    special_values: swallows or spreads NaN and infinities. opcheck: the torch operator is registered wrongly (torch
    operators). probe: right in plain runs, wrong in a probe (probes). sanitizer: a sanitizer reports an error (the
    sanitizer). implausible_time: faster than the device can be, or more time than passed. forged_reply: written by
    kernel code. missing_module: imported and not there (modules). bad_definition: the definition beside a commit raises
    when it is loaded with the commit, or the reference of an operator cannot judge its variants. build_timed_out,
    build_full_disk, build_offline: what a build of the commit lacked: time, room, the network. idle_work: its process
    keeps a CPU or the device busy while nothing calls it. not_capturable (metrics): no CUDA graph can hold its
    launches, so `kernel` is compared in place of these; a fact beside a right result and no fault of it.
    """

    WRONG_VALUES = "wrong_values"
    WRONG_FORM = "wrong_form"
    MISSING_GRADIENT = "missing_gradient"
    MODIFIED_INPUT = "modified_input"
    OVERWRITTEN_RESULT = "overwritten_result"
    SHARED_RESULT = "shared_result"
    UNFINISHED = "unfinished"
    OTHER_STREAM = "other_stream"
    LAZY_RESULT = "lazy_result"
    CACHED_RESULT = "cached_result"
    SKIPPED_LAUNCH = "skipped_launch"
    PREPARED_ANSWER = "prepared_answer"
    TIMES_DISAGREE = "times_disagree"
    SEARCHED_MEMORY = "searched_memory"
    DETECTED_TIMER = "detected_timer"
    UNWRITTEN_RESULT = "unwritten_result"
    REDUCED_PRECISION = "reduced_precision"
    REPLACED_FUNCTION = "replaced_function"
    CHANGED_SETTING = "changed_setting"
    OUT_OF_BOUNDS = "out_of_bounds"
    SPECIAL_VALUES = "special_values"
    OPCHECK = "opcheck"
    PROBE = "probe"
    SANITIZER = "sanitizer"
    IMPLAUSIBLE_TIME = "implausible_time"
    FORGED_REPLY = "forged_reply"
    MISSING_MODULE = "missing_module"
    BAD_DEFINITION = "bad_definition"
    BUILD_TIMED_OUT = "build_timed_out"
    BUILD_FULL_DISK = "build_full_disk"
    BUILD_OFFLINE = "build_offline"
    IDLE_WORK = "idle_work"
    NOT_CAPTURABLE = "not_capturable"


CHEATS = frozenset(
    {
        Fault.LAZY_RESULT,
        Fault.CACHED_RESULT,
        Fault.SKIPPED_LAUNCH,
        Fault.PREPARED_ANSWER,
        Fault.TIMES_DISAGREE,
        Fault.SEARCHED_MEMORY,
        Fault.DETECTED_TIMER,
        Fault.REPLACED_FUNCTION,
        Fault.CHANGED_SETTING,
        Fault.IMPLAUSIBLE_TIME,
        Fault.FORGED_REPLY,
        Fault.IDLE_WORK,
    }
)
"""Faults that deceive whoever measures; a judgement calls them so."""


class JudgementVerdict(StrEnum):
    """Verdict of a judgement. The worst of its cases decides, in this order.

    cheats: a fault of CHEATS. wrong. cannot_build. failed: crashed, timed out, ran out of memory, or was not measured
    on every case. over_budget: its device seconds or those of a sealed job ran out. cancelled: by a person. slower,
    faster: on a case, and no case says the opposite; slower and faster on two cases is `mixed`. same: no case differs,
    as far as the rounds tell.
    """

    CHEATS = "cheats"
    WRONG = "wrong"
    CANNOT_BUILD = "cannot_build"
    FAILED = "failed"
    OVER_BUDGET = "over_budget"
    CANCELLED = "cancelled"
    MIXED = "mixed"
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"


class JobState(StrEnum):
    """queued → running → done | failed | cancelled; running → queued when its worker was lost, and when it makes room
    for a more urgent job; failed | cancelled | done → queued on retry."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobOutcome(StrEnum):
    """Outcome of an ended job. Its state does not say it: a job that is done may have found wrong results."""

    OK = "ok"
    COMPARED = "compared"
    """It took the rounds of a comparison; the report says what they decide."""
    FINDINGS = "findings"
    """A result is wrong."""
    COULD_NOT_RUN = "could_not_run"
    """Nothing is wrong, and something crashed, timed out or did not build."""
    NOT_RUN = "not_run"
    """It was cancelled, its sources were measured before, or nothing that it asks for is supported."""


class RunState(StrEnum):
    """running → done (results recorded) | failed (could not run) | lost (lease ran out) | cancelled | yielded (it made
    room for a more urgent job, and the next run goes on)."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"
    YIELDED = "yielded"


class JobKind(StrEnum):
    CHECK = "check"
    BENCH = "bench"
    PROFILE = "profile"
    COMPARE = "compare"


RESUMABLE = frozenset({JobKind.CHECK, JobKind.BENCH, JobKind.COMPARE})
"""Kinds of jobs that make room for more urgent ones between two variants, or two rounds of a comparison, and go on
afterwards where they stopped. A profile is of few cells: it is done before a job that interrupts it had started.
"""


class LaneUse(StrEnum):
    """Resource that a child uses beside other children of its job; one child at a time has the device.

    none: compilers work for the child, or the child does nothing. opening: the child starts, at the same time as other
    children may. host: the child captures CUDA graphs, and nothing of the child runs on the device. device: nothing of
    another child runs on the device. quiet: the child times its host as well, so no other child captures.
    """

    NONE = "none"
    OPENING = "opening"
    HOST = "host"
    DEVICE = "device"
    QUIET = "quiet"


class ScheduleKind(StrEnum):
    """suite: the newest commit, whole.

    rerun: a commit measured before, once more. backfill: commits that series have no point at.
    """

    SUITE = "suite"
    RERUN = "rerun"
    BACKFILL = "backfill"


class ChangeDirection(StrEnum):
    """Which way a change went.

    `broken` is a case that was right before, and is wrong, crashes or cannot be built since.
    """

    SLOWER = "slower"
    FASTER = "faster"
    BROKEN = "broken"


class Signal(StrEnum):
    """The two times of a call on a device that a host serves: the device's (kernel), and the host's until the device
    has all of its work (launch). Each has verdicts of its own."""

    KERNEL = "kernel"
    LAUNCH = "launch"


class Cause(StrEnum):
    """Cause of a suspicion: times in history, code that changed where history sees too little, or a status."""

    HISTORY = "history"
    CODE = "code"
    STATUS = "status"


class ChangeOrigin(StrEnum):
    """Origin of a change of a time: the commit, the toolchain, both or neither; unknown while rounds do not tell."""

    CODE = "code"
    TOOLCHAIN = "toolchain"
    BOTH = "both"
    NEITHER = "neither"
    UNKNOWN = "unknown"


class MergeCause(StrEnum):
    """Part of a merge commit that changed an operator.

    branch: commits of the merged branch. merge: the merge itself, as neither side shows the change alone. unknown: the
    merged branch could not be measured, or its trials were unsure.
    """

    BRANCH = "branch"
    MERGE = "merge"
    UNKNOWN = "unknown"


class Purpose(StrEnum):
    """Why a trial was asked for: to decide a suspicion, once more with a larger budget, to halve a range, to prove the
    commit found."""

    CONFIRM = "confirm"
    RETRY = "retry"
    BISECT = "bisect"
    PROVE = "prove"


class Answer(StrEnum):
    """Result of a trial of two commits. `skipped`: its commit cannot be measured, so another commit is tried."""

    PENDING = "pending"
    CHANGED = "changed"
    SAME = "same"
    UNSURE = "unsure"
    SKIPPED = "skipped"


class Verdict(StrEnum):
    """suspected → confirmed | dismissed | unsure, decided by an interleaved comparison."""

    SUSPECTED = "suspected"
    CONFIRMED = "confirmed"
    DISMISSED = "dismissed"
    UNSURE = "unsure"


class ChangePhase(StrEnum):
    """The life of a change, from its verdict, its range and its triage.

    suspected → bisecting (confirmed in several commits, trials still narrow them) → culprit (one commit) or confirmed
    (in several commits that cannot be narrowed) → fixed | reverted | accepted | invalid. Without a confirmation a
    suspicion ends as dismissed or unsure. unpaired: suspected from results that were measured elsewhere, so that no
    comparison of paired rounds can decide it.
    """

    SUSPECTED = "suspected"
    UNPAIRED = "unpaired"
    BISECTING = "bisecting"
    CONFIRMED = "confirmed"
    CULPRIT = "culprit"
    FIXED = "fixed"
    REVERTED = "reverted"
    ACCEPTED = "accepted"
    INVALID = "invalid"
    DISMISSED = "dismissed"
    UNSURE = "unsure"


class StatementKind(StrEnum):
    """Kind of statement about a series at a commit.

    confirmed: a trial or a check decided that it changed. suspected: history saw a change that no trial decided. shift:
    its time moved by more than the smallest change that the series can show. same_code: the code is that of the commit
    that it is held against. not_told_apart: its time did not move by more than noise. failed: a check or a bench did
    not end well. no_data: nothing was measured.
    """

    CONFIRMED = "confirmed"
    SUSPECTED = "suspected"
    SHIFT = "shift"
    SAME_CODE = "same_code"
    NOT_TOLD_APART = "not_told_apart"
    FAILED = "failed"
    NO_DATA = "no_data"


class StatementDirection(StrEnum):
    """Direction of a statement: that of its change, or fixed, where a later commit ended what was broken."""

    SLOWER = "slower"
    FASTER = "faster"
    BROKEN = "broken"
    FIXED = "fixed"


class StatementSource(StrEnum):
    """Evidence of a statement: paired rounds of a trial, times of separate runs, results of checks and benches, or the
    fingerprint of the code."""

    TRIAL = "trial"
    HISTORY = "history"
    CHECK = "check"
    CODE = "code"
    NONE = "none"


class BranchKind(StrEnum):
    """branch: under refs/heads. request: a pull or merge request. merged: commits that a merge brought to the watched
    branch and that no branch holds any more."""

    BRANCH = "branch"
    REQUEST = "request"
    MERGED = "merged"


class Triage(StrEnum):
    """State of a confirmed change, set by evidence or by people; any state may follow any other, with a note.

    fixed: a later commit undid the effect of the change. reverted: a later commit has the sources from before the
    change again.
    """

    NEW = "new"
    ACKNOWLEDGED = "acknowledged"
    ACCEPTED = "accepted"
    FIXED = "fixed"
    REVERTED = "reverted"
    INVALID = "invalid"


class InboxTab(StrEnum):
    """Tab of the list of regressions; each is in one, but those that the server took for the wider range of another.

    open: what is confirmed as slower or broken, until evidence or a person closes it. suspected, improvements: the same
    of what no trial has decided, and of what is confirmed as faster. closed: what evidence or a person closed, and what
    trials did not confirm.
    """

    OPEN = "open"
    SUSPECTED = "suspected"
    IMPROVEMENTS = "improvements"
    CLOSED = "closed"


class AwaitedState(StrEnum):
    """State of a file of results whose commit the repository did not hold. waiting: it is imported once the mirror has
    the commit. imported: it was. refused: it could not be, or the commit did not come in time."""

    WAITING = "waiting"
    IMPORTED = "imported"
    REFUSED = "refused"


class RetentionKind(StrEnum):
    """Data that a repository may keep for a limited time. builds: the logs of compilers; mirror: the server's clone."""

    SAMPLES = "samples"
    TRACES = "traces"
    LOGS = "logs"
    BUILDS = "builds"
    MIRROR = "mirror"


class NoticeKind(StrEnum):
    """Kind of event that a channel reports to people.

    confirmed: an operator became slower, as a trial shows, or history alone where results were imported. broken: an
    operator fails that passed. settled: nothing is left to be measured for the change. fixed: a later commit ended the
    change; or what the channel has told of a change is withdrawn, which it is told whatever its kinds. alarm: a problem
    blocks measurement. digest: the week, every Monday. test: the channel works, when somebody asks for a test.
    """

    CONFIRMED = "confirmed"
    BROKEN = "broken"
    SETTLED = "settled"
    FIXED = "fixed"
    ALARM = "alarm"
    DIGEST = "digest"
    TEST = "test"


class ForgeKind(StrEnum):
    """API that a code host offers."""

    GITHUB = "github"
    GITLAB = "gitlab"


class ForgeState(StrEnum):
    """Result of the newest request to a repository's forge.

    unknown: no request was made since the settings changed. missing: the app is not installed, or the project does not
    exist. refused: the key or token is not valid, or lacks a permission. unreachable: no answer.
    """

    UNKNOWN = "unknown"
    LINKED = "linked"
    MISSING = "missing"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


class ForgeMessageKind(StrEnum):
    """Kind of message or request to a forge: whether the repository is linked, a check run, the comment of a change
    request, the command of a member, the reaction to the command, an issue of a regression."""

    LINK = "link"
    CHECK_RUN = "check_run"
    COMMENT = "comment"
    COMMAND = "command"
    REACTION = "reaction"
    ISSUE = "issue"


class TokenScope(StrEnum):
    """Permissions of a personal token; each scope includes the scopes before it.

    read: see everything. submit: request measurements. triage: decide what becomes of changes and results. administer:
    everything else, such as repositories, channels and tokens.
    """

    READ = "read"
    SUBMIT = "submit"
    TRIAGE = "triage"
    ADMINISTER = "administer"


class AccountRole(StrEnum):
    """Permissions of the person of an account: the same as of a token of the scope in the same place of TokenScope."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    TRIAGER = "triager"
    ADMINISTRATOR = "administrator"
