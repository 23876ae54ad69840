"""Every statement of the write side finds its rows through an index."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text

from tests.db.conftest import World, outcome
from warpwatch.contract.environment import Card
from warpwatch.contract.outcome import Comparison, Finding
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import (
    AccountRole,
    Answer,
    BranchKind,
    JobState,
    NoticeKind,
    Purpose,
    RetentionKind,
    Status,
    TokenScope,
    Verdict,
)
from warpwatch.db import (
    callbacks,
    cards,
    environment_changes,
    job_sources,
    keeping,
    registry,
    regressions,
    runs,
    submissions,
    traces,
    trials,
    unjudged,
)
from warpwatch.db.access import (
    NewAuditEntry,
    add_token,
    end_session,
    is_session_ended,
    list_audit,
    list_tokens,
    record_audit,
    revoke_token,
    use_token,
)
from warpwatch.db.accounts import (
    Identity,
    accept_invitation,
    change_account,
    ensure_account,
    find_invited,
    invite,
    list_accounts,
    read_account,
    sign_in,
    use_account,
)
from warpwatch.db.attempts import record_failure, record_sent
from warpwatch.db.branches import NewBranch, replace_branches
from warpwatch.db.bundles import date_back
from warpwatch.db.callbacks import list_callbacks
from warpwatch.db.cards import save_card_offset
from warpwatch.db.channels import (
    NewChannel,
    Notice,
    add_channel,
    claim_delivery,
    find_told,
    list_channels,
    list_deliveries,
    list_listeners,
    list_untold,
    list_withdrawn,
    read_channel,
    remove_channel,
    tell_people,
)
from warpwatch.db.ci_identities import (
    NewCiIdentity,
    add_ci_identity,
    find_ci_identities,
    find_repository_of,
    list_ci_identities,
    note_ci_use,
    remove_ci_identity,
)
from warpwatch.db.closing import (
    SeriesFix,
    list_later_changes,
    list_later_checks,
    list_merged_changes,
    list_open_changes,
    save_fixes,
)
from warpwatch.db.database import Database
from warpwatch.db.deletion import list_orders
from warpwatch.db.job_sources import save_job_sources
from warpwatch.db.keeping import list_due_rules, preview_rule
from warpwatch.db.leases import Reaper
from warpwatch.db.models import (
    JobRecord,
    OperatorRecord,
    PointRecord,
    RegressionRecord,
    SeriesRecord,
)
from warpwatch.db.muted import find_muted, list_muted, mute, unmute
from warpwatch.db.reads import history, judging, observed
from warpwatch.db.reads.alarms import (
    list_paused_workers,
    list_shared_devices,
    list_stale_devices,
    list_stale_workers,
    list_unfit_devices,
)
from warpwatch.db.reads.badges import read_badge_counts
from warpwatch.db.reads.causes import read_evidence
from warpwatch.db.reads.cells import list_cells_around
from warpwatch.db.reads.code import list_commits
from warpwatch.db.reads.commit_cells import CellFilter, list_cells
from warpwatch.db.reads.commits import list_culprits, read_commit
from warpwatch.db.reads.decisions import read_decision
from warpwatch.db.reads.events import find_ordinal, list_choices, list_events, ordinal_at, read_event, read_quality
from warpwatch.db.reads.export import ExportCursor, ExportFilter, list_exported_series, list_points
from warpwatch.db.reads.history import read_history
from warpwatch.db.reads.lines import (
    ALL_COMMITS,
    HistoryLine,
    find_branch,
    list_branches,
    list_branches_named,
    list_stored_commits,
    read_followed,
    read_line,
    read_line_of,
    read_lines,
)
from warpwatch.db.reads.metrics import (
    list_device_uses,
    list_notification_counts,
    list_queue_depths,
    list_result_counts,
    list_run_counts,
    list_worker_counts,
)
from warpwatch.db.reads.missing import list_missing
from warpwatch.db.reads.occupancy import list_device_runs, list_queued
from warpwatch.db.reads.overview import read_overview
from warpwatch.db.reads.paired import list_paired_rounds
from warpwatch.db.reads.previews import list_previews
from warpwatch.db.reads.reports import read_report_facts
from warpwatch.db.reads.search import search
from warpwatch.db.reads.standing import count_standing, list_timeline_ordinals, list_verdict_marks
from warpwatch.db.reads.statements import list_facts
from warpwatch.db.reads.trades import (
    count_costs,
    count_watched_costs,
    list_next_commits,
    list_trades,
    list_trades_at,
    list_trades_of_line,
    read_trade_facts,
)
from warpwatch.db.reads.work import JobFilter, count_trials, list_jobs
from warpwatch.db.regressions import RegressionFilter, list_regressions, read_regression, read_verdicts
from warpwatch.db.saved_views import list_saved_views, read_saved_view, remove_view, save_view
from warpwatch.db.schedules import list_due, list_open, list_readings, list_requested, list_schedules, read_costs
from warpwatch.db.traces import TraceFilter, list_traces, read_summaries
from warpwatch.db.trends import (
    find_newest_run,
    keep_trend,
    list_recent_points,
    list_release_times,
    list_running,
    list_trend_commits,
    list_trend_scopes,
    read_queue,
    read_trends,
)
from warpwatch.db.watches import list_watchers, list_watches, read_watch, unwatch, watch


def use_everything(world: World) -> None:
    """Lives through a job of every fate."""
    done, lost, cancelled = world.job("compare", commit=1, base=0), world.job(), world.job()
    with world.database.session() as s:
        order = runs.begin_run(s, done, world.worker)
        stale = runs.begin_run(s, lost, world.worker)
        assert order is not None
        assert stale is not None
        runs.heartbeat(s, order.run_id)
        runs.append_log(s, order.run_id, "hello")
        runs.set_progress(s, order.run_id, 1, 2, "v1")
        registry.worker_heartbeat(s, world.worker)
    with world.database.session() as s:
        case = "n=16 f32 fwd"
        pairs = [Comparison("v1", case, "hot", "1", Status.OK, "", [1.0], [1.3])]
        runs.finish_run(s, order.run_id, outcome(comparisons=pairs, base_findings=[Finding("v1", case, Status.OK)]))
        runs.lose_run(s, stale.run_id, "silent")
        submissions.cancel_submission(s, world.look(cancelled).submission_id)
        submissions.retry_job(s, cancelled)
        Reaper(15).sweep(s)
        assert [job.state for job in unjudged.unjudged_jobs(s)] == [JobState.DONE]
        unjudged.mark_judged(s, done)
        commits: dict[str, Any] = {"base_commit_id": world.commits[0], "head_commit_id": world.commits[1]}
        series = s.query(PointRecord.series_id).limit(1).scalar()
        number = regressions.open_suspicion(
            s,
            operator_id=world.operator,
            device_id=world.device,
            direction="slower",
            ratio=1.3,
            series=[(series, 1.3)],
            **commits,
        )
        assert number is not None
        one = regressions.SeriesDecision(series, Verdict.CONFIRMED, 1.3, 1.2, 1.4)
        regressions.decide(s, number, Verdict.CONFIRMED, series=[one])
        save_fixes(s, number, [SeriesFix(series, 1.1, None)], None)
        date_back(s, world.operator, datetime.now(UTC))
        trial = trials.NewTrial(
            number,
            world.repository,
            world.operator,
            world.device,
            "compare",
            Purpose.CONFIRM,
            spec=JobSpec(),
            priority=0,
            **commits,
        )
        assert trials.find_imported(s, trial, done) is None
        list(traces._chunks(s, 1))
        callbacks.tell(s, world.look(done).submission_id, "http://host", {"state": "pending"}, is_final=False)
        callbacks.tell(s, world.look(done).submission_id, "http://host", {"state": "success"}, is_final=True)
        callbacks.reopen(s, world.look(done).submission_id, "again")
        callbacks.list_open(s)
        due = callbacks.claim_due(s)
        assert due is not None
        record_failure(s, "callbacks", due.id, "no", 1)
        record_sent(s, "callbacks", due.id)
        assert read_report_facts(s, world.look(done).submission_id) is not None
        list_callbacks(s, world.look(done).submission_id)


def read_everything(world: World) -> None:
    """Asks all that can be asked of regressions, schedules and alarms."""
    with world.database.session() as s:
        now = datetime.now(UTC)
        lists = (list_shared_devices, list_stale_devices, list_stale_workers, list_paused_workers, list_unfit_devices)
        for list_facts in lists:
            list_facts(s, now, 15.0)
        list(list_missing(s, now, world.repository))
        assert list_jobs(s, JobFilter(repository_id=world.repository, operator="kron")).items
        list_schedules(s, now, world.repository)
        list_due(s, now)
        list_open(s, 1, now)
        list_requested(s, world.repository, ["aaaa"], ["bench"])
        list_readings(s, world.repository)
        read_costs(s)
        (listed,) = list_regressions(
            s, world.repository, RegressionFilter(state="open", since=0, assignee="nobody")
        ).items
        list_events(
            s,
            world.repository,
            RegressionFilter(state="open", operator="kron", device_key="test-cpu", case_key="n=16", overdue=False),
        )
        assert read_event(s, world.repository, listed) is not None
        assert read_regression(s, listed.id) is not None
        assert list_previews(s, [listed.id], HistoryLine(line_id=1))
        assert list_cells_around(s, [listed.id])
        mute(s, [1], until=now.date(), author="ann", reason="")
        assert list_muted(s, world.repository).items
        assert find_muted(s, [1])
        unmute(s, [1])
        read_evidence(s, listed.id)
        read_quality(s, world.repository, datetime.now(UTC))
        read_verdicts(s, 1)
        list_choices(s, world.repository)
        find_ordinal(s, world.repository, "aaaa")
        ordinal_at(s, world.repository, datetime.now(UTC))
        assert search(s, world.repository, "kron").items
        list_traces(s, TraceFilter(world.repository, submission=1))
        read_summaries(s, [1])
        list_device_runs(s, datetime.now(UTC))
        list_queued(s)
        count_trials(s, world.repository, 0)
        list_queue_depths(s)
        list_worker_counts(s, 15.0)
        list_device_uses(s)
        list_run_counts(s)
        list_result_counts(s)
        list_notification_counts(s)
        rules = dict.fromkeys(RetentionKind, 7)
        keeping.set_rules(s, world.repository, rules)
        for rule in list_due_rules(s):
            assert keeping.claim_rule(s, rule)
            preview_rule(s, rule)
            if rule.kind != RetentionKind.MIRROR:
                keeping.delete_aged(s, rule)
        list_orders(s)
        account = ensure_account(s, "ann", AccountRole.VIEWER)
        add_token(s, account.id, "ann", "", "hash", TokenScope.READ, None)
        holder = use_token(s, token_hash="hash")
        assert holder is not None
        assert use_token(s, token_id=holder.id) is not None
        revoke_token(s, holder.id)
        end_session(s, "session", 60)
        assert is_session_ended(s, "session")
        record_audit(s, NewAuditEntry("ann", "POST", "/", "/", 201, None))
        assert list_tokens(s).items
        assert list_audit(s).items
        assert list_accounts(s, "ann").items == [read_account(s, account.id)]
        change_account(s, account.id, AccountRole.TRIAGER)
        invite(s, account.id, "hash", datetime.now(UTC) + timedelta(days=1))
        assert find_invited(s, "hash") is not None
        assert accept_invitation(s, "hash") == use_account(s, account.id)
        ci = NewCiIdentity("https://id.example", "us", "repo:a/b:*")
        ci_id = add_ci_identity(s, world.repository, ci)
        assert add_ci_identity(s, world.repository, ci) == ci_id
        note_ci_use(s, [ci_id])
        assert find_ci_identities(s, ci.issuer) == list_ci_identities(s, world.repository).items
        assert find_repository_of(s, 1) is not None
        remove_ci_identity(s, world.repository, ci_id)
        identity = Identity("https://id.example", "1", "ann", "ann", None)
        assert sign_in(s, identity) == sign_in(s, identity)


def read_branches(world: World) -> None:
    """Asks all that depends on which branch a commit is on, of a branch that was merged."""
    with world.database.session() as s:
        repository = read_followed(s, world.repository)
        assert repository is not None
        shas = list_stored_commits(s, world.repository)
        places = {sha: place for place, sha in enumerate(sorted(shas), 1)}
        main = NewBranch("main", BranchKind.BRANCH, True, "c" * 40, places=places)
        side = NewBranch("side", BranchKind.BRANCH, False, "b" * 40, 1, "a" * 40, "a" * 40, "c" * 40, {"b" * 40: 2})
        replace_branches(s, world.repository, [main, side], {"a" * 40: ["v1"]}, key="1", earlier_key=None)
        line = read_line(s, world.repository)
        assert line is not None
        assert read_line(s, world.repository, "side") is not None
        assert read_line_of(s, world.commits[1]) is not None
        assert len(list_branches(s, world.repository).items) == 2
        assert find_branch(s, world.repository, "side") is not None
        list_branches_named(s, world.repository, ["side"])
        read_lines(s, world.repository)
        assert list_commits(s, world.repository, line=line).items
        read_overview(s, world.repository, world.device, "hot", line)
        assert read_trends(s, world.repository, world.device, "hot", line).commits
        commit_ids = [commit.id for commit in list_trend_commits(s, world.repository, world.device, "hot", line)]
        assert list_trend_scopes(s)
        assert find_newest_run(s) is not None
        assert keep_trend(s, world.operator, world.device, "hot", commit_ids)
        list_running(s, world.repository)
        read_queue(s, world.repository)
        read_badge_counts(s, world.repository, line)
        count_standing(s, world.repository, line, watcher="ann")
        assert list_timeline_ordinals(s, world.repository, line)
        list_verdict_marks(s, world.repository, world.device, line)
        view = save_view(s, world.repository, "a view", "/history/1")
        assert view is not None
        assert list_saved_views(s, world.repository).items == [read_saved_view(s, view)]
        remove_view(s, view)
        operator = s.query(OperatorRecord.id).limit(1).scalar()
        watch_id = watch(s, "ann", operator)
        assert watch(s, "ann", operator) == watch_id
        assert list_watches(s, world.repository, "ann", "kron").items == [read_watch(s, watch_id)]
        assert list_watchers(s, world.repository) == ["ann"]
        read_overview(s, world.repository, world.device, "hot", line, watcher="ann")
        list_regressions(s, world.repository, RegressionFilter(watcher="ann"))
        unwatch(s, watch_id)
        new = NewChannel("mail", "webhook", "http://a", "http://a", "secret", list(NoticeKind))
        channel = add_channel(s, world.repository, new)
        assert read_channel(s, channel) is not None
        assert list_channels(s, world.repository).items
        assert list_listeners(s)
        for kind in NoticeKind:
            if kind not in (NoticeKind.ALARM, NoticeKind.DIGEST, NoticeKind.TEST):
                list_untold(s, kind)
        list_withdrawn(s)
        assert tell_people(s, channel, Notice(NoticeKind.TEST, "test", "title", "text", "link")) is not None
        find_told(s, channel, [NoticeKind.TEST], [1])
        due = claim_delivery(s)
        assert due is not None
        record_failure(s, "deliveries", due.id, "no", 1)
        record_sent(s, "deliveries", due.id)
        assert list_deliveries(s, channel).items
        remove_channel(s, channel)
        series = s.query(SeriesRecord.id).limit(1).scalar()
        read_history(s, series, line, branches=True)
        assert list_recent_points(s, [series], line)
        stored = list(list_stored_commits(s, world.repository))
        assert list_facts(s, [series], stored, line)
        assert list_facts(s, [series], stored[:1], line, stored[-1])
        list_release_times(s, world.repository, [series], line)
        point = s.query(PointRecord.id).limit(1).scalar()
        history.list_samples(s, [point])
        chosen = ExportFilter(world.repository, with_samples=True)
        (exported, *_) = list_exported_series(s, chosen, None)
        assert list_points(s, exported, chosen, ExportCursor())[0]
        history.list_readings(s, series, line)
        detail = read_commit(s, world.repository, "b" * 40)
        assert detail is not None
        list_cells(s, detail.commit, ALL_COMMITS, CellFilter.CHANGED, "kron", 1)
        list_culprits(s, world.commits)
        read_trade_facts(s, world.commits[0])
        list_next_commits(s, world.commits[0], world.operator, world.device)
        list_trades(s, world.commits)
        list_trades_of_line(s, world.repository, ALL_COMMITS)
        list_trades_at(s, world.repository, ["b" * 40])
        least = {"least": 0.05, "least_error": 0.7}
        count_watched_costs(s, [world.repository], least)
        count_costs(s, world.repository, ALL_COMMITS, least)
        list_paired_rounds(s, world.commits[0], world.commits[1])
        read_decision(s, 1)
        list_open_changes(s, world.operator, world.device)
        list_later_checks(s, world.operator, world.device)
        list_later_changes(s, world.operator, world.device, 8)
        list_merged_changes(s)


def judge_everything(world: World) -> None:
    """Asks and writes all that a verdict takes."""
    with world.database.session() as s:
        number = s.query(RegressionRecord.id).order_by(RegressionRecord.id).limit(1).scalar()
        series, variant, case = (
            s.query(SeriesRecord.id, SeriesRecord.variant_id, SeriesRecord.case_id)
            .order_by(SeriesRecord.id)
            .limit(1)
            .one()
        )
        ends = (world.commits[0], world.commits[1])
        place = (number, world.repository, world.operator, world.device)
        new = trials.NewTrial(*place, "compare", Purpose.CONFIRM, *ends, JobSpec(pairs=[]), -1)
        job = trials.ask(s, new)
        trial = judging.find_trial(s, job)
        assert trial is not None
        trials.answer(s, trial.id, Answer.SAME, "the same")
        trials.keep_share(s, world.device, 0.2)
        trials.ensure_series(s, world.operator, world.device, [(variant, case)], ["hot"])
        regressions.move(s, number, *ends)
        regressions.turn(s, number)
        regressions.settle(s, number)
        regressions.copy_members(s, number, number)
        judging.read_origin(s, job)
        for read in (observed.list_readings, observed.list_release_readings, observed.list_checks_around):
            read(s, job)
        observed.list_trial_checks(s, number)
        observed.list_trial_rounds(s, number)
        submission = s.query(JobRecord.submission_id).filter_by(id=job).scalar()
        assert read_report_facts(s, submission) is not None
        submissions.may_repeat(s, submission)
        submissions.repeat(s, job, [], 36)
        for read_of in (judging.read_state, judging.list_members, judging.list_trials, judging.list_wider):
            read_of(s, number)
        judging.list_known(s, world.operator, world.device, 0)
        judging.find_trace(s, job, ends[0], series)
        judging.read_code_hash(s, world.operator, ends[0], 1)
        judging.list_native(s, ends[0], "kron")
        environment = s.query(PointRecord.environment_id).filter_by(series_id=series).limit(1).scalar()
        save_job_sources(
            s,
            job_id=job,
            operator_id=world.operator,
            commit_id=ends[0],
            environment_id=environment,
            sources="a",
            shifts=[0.1],
        )
        environment_changes.find_new_environment(s, job)
        begun = environment_changes.NewEnvironment(
            world.operator, "kron", world.device, ends[0], "a", environment, environment, None, None, job, "b"
        )
        environment_changes.note_change(s, begun, is_by_commit=False)
        environment_changes.list_changes(s, world.operator, world.device, ends[0])
        environment_changes.find_compared(s, submission)
        environment_changes.list_decided(s, number)
        environment_changes.list_series_steps(s, series, ALL_COMMITS)
        environment_changes.list_recent_steps(s, world.repository, ALL_COMMITS, 5)
        sides = ends[0], environment, environment
        change = environment_changes.EnvironmentChange(
            1, world.repository, world.operator, "kron", world.device, "cpu", *sides, ("a", "b"), {}, None
        )
        environment_changes.list_border_readings(s, change)
        environment_changes.list_earlier_readings(s, [series], change)
        environment_changes.list_regression_steps(s, number)
        environment_changes.list_job_steps(s, job)
        job_sources.list_common_shifts(s, world.operator, environment, ends)
        job_sources.list_sources(s, series, ends)
        ids = [registry.ensure_card(s, world.device, Card(key)) or 0 for key in ("GPU-a", "GPU-b")]
        assert registry.ensure_card(s, world.device, Card("GPU-b", {"host": "node7"})) == ids[1]
        save_card_offset(s, world.operator, ids[0], ids[1], [0.1], is_agreed=True)
        assert len(cards.list_cards(s, world.device)) == 2
        assert cards.list_card_offsets(s, world.device) == cards.list_agreed_cards(s, series)
        assert cards.read_card_names(s, ids) == {ids[0]: "a", ids[1]: "b"}
        cards.list_drifts(s, datetime.now(UTC))
        cards.list_other_drifts(s, ids[0], world.operator)


@pytest.mark.parametrize(
    ("act", "fewest"),
    [(use_everything, 41), (read_everything, 60), (judge_everything, 36), (read_branches, 46)],
)
def test_no_statement_reads_a_whole_table(world: World, act: Callable[[World], None], fewest: int) -> None:
    if act is not use_everything:
        use_everything(world)
    expect_indexes(world, act, fewest)


def expect_indexes(world: World, act: Callable[[World], None], fewest: int) -> None:
    """What `act` asks is at least so many statements, none of which reads a whole table."""
    seen: dict[str, Any] = {}

    def remember(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if (
            statement.lstrip().startswith(("SELECT", "UPDATE", "DELETE", "INSERT", "WITH"))
            and "pg_notify" not in statement
        ):
            seen.setdefault(statement, parameters[0] if isinstance(parameters, list) else parameters)

    event.listen(world.database.engine, "before_cursor_execute", remember)
    act(world)
    event.remove(world.database.engine, "before_cursor_execute", remember)
    assert len(seen) >= fewest
    without_index = "SELECT id FROM runs WHERE message = 'x'"
    assert "Seq Scan" in plans(world.database, {without_index: None})[without_index]
    assert {statement: plan for statement, plan in plans(world.database, seen).items() if "Seq Scan" in plan} == {}


def plans(database: Database, statements: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    with database.session() as s:
        # The tables are tiny here; this makes the planner use an index wherever there is one.
        s.execute(text("SET LOCAL enable_seqscan = off"))
        for statement, parameters in statements.items():
            plan = s.connection().exec_driver_sql(f"EXPLAIN {statement}", parameters)
            found[statement] = "\n".join(line for (line,) in plan)
    return found
