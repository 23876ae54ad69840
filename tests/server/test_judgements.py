"""Judgements: what a client sends chooses nothing, what it is told names no hidden case, and what is signed holds."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from joserfc import jws
from sqlalchemy import text
from typer.testing import CliRunner

from tests.apps import create_app
from tests.builders import CASES, Lab, catalogue, write_commits
from tests.server.test_submissions import errors, jobs
from warpwatch.cli.app import app as commands
from warpwatch.contract.activities import RunTimes
from warpwatch.contract.codec import to_json
from warpwatch.contract.data_folder import judgements_folder, secret_paths
from warpwatch.contract.outcome import Comparison, Finding, Outcome, PartialOutcome
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import Fault, JobKind, JobState, Reason, Status
from warpwatch.db import registry, runs
from warpwatch.db.database import Database
from warpwatch.db.judgements import JudgedJob
from warpwatch.server.judge.judgements import judge_cases
from warpwatch.server.receipts import ReceiptError, public_keys, receipt_key, sign_receipt, verify_receipt
from warpwatch.server.threads.judgement_keeper import JudgementKeeper
from warpwatch.settings import Settings

API = "/api/v1"
PUBLIC, HIDDEN = CASES[0], "n=8191,f32,fwd"
OPERATOR = """
from warpwatch.operator import Operator

def scale(x):
    return x

def reference(x):
    return scale(x)

def helper(x):
    return x

operator = Operator("square", "About square.", reference=reference)

@operator.variant("v1")
def v1(x):
    return helper(x)
"""
FASTER = {"kernels/square.py": OPERATOR.replace("return helper(x)", "return helper(x) + 0")}
RULES = f"""
seconds = 60
step = 10
per_day = 5
open = 2
[[judged]]
repository = "kernels"
operator = "square"
device = "test-cpu"
variants = ["v1"]
public = ["{PUBLIC}"]
hidden = ["{HIDDEN}"]
"""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    folder = judgements_folder(settings.home)
    folder.mkdir(parents=True)
    (folder / "rules.toml").write_text(RULES)
    return settings


@pytest.fixture
def lab(database: Database, tmp_path: Path) -> Lab:
    source = tmp_path / "kernels"
    shas = write_commits(source, [("Add square", {"kernels/square.py": OPERATOR, "csrc/square/a.cpp": "int a;\n"})])
    made = Lab(database, source, shas, folder=tmp_path)
    with database.session() as session:
        registry.record_catalogue(session, made.commits[shas[0]], catalogue(("square",)))
    return made


@pytest.fixture
def keeper(settings: Settings, lab: Lab) -> JudgementKeeper:
    return JudgementKeeper(settings, lab.database)


@pytest.fixture
def client(settings: Settings, lab: Lab) -> Iterator[TestClient]:
    app = create_app(settings, lab.database, judge=False)
    with TestClient(app, base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client:
        yield client


def ask(client: TestClient, **fields: Any) -> Any:
    body = {"repository": "kernels", "operator": "square", "files": FASTER} | fields
    return client.post(f"{API}/judgements", json={name: value for name, value in body.items() if value is not None})


def run_of(lab: Lab, job: int) -> tuple[int, JobRequest]:
    """A run of the job, and the request that its worker gets."""
    with lab.database.session() as session:
        claimed = runs.begin_run(session, job, lab.worker)
    assert claimed is not None
    return claimed.run_id, claimed.request


def measured(lab: Lab, request: JobRequest, times: float = 0.5, **wrong: Any) -> Outcome:
    """What a worker finds that measures everything it was asked for; wrong: fields of the first finding."""
    spec = request.spec
    if request.kind is JobKind.COMPARE:
        base = [10_000.0 + number for number in range(12)]
        rounds = [
            Comparison(*pair, "hot", "1", Status.OK, "", base, [time * times for time in base])
            for pair in spec.pairs or ()
        ]
        return replace(lab.outcome([]), comparisons=rounds)
    found = [Finding("v1", case, Status.OK, f"at {case}") for case in spec.cases or ()]
    return lab.outcome([replace(found[0], **wrong), *found[1:]])


def finish(lab: Lab, client: TestClient, row: dict[str, Any], times: float = 0.5, **wrong: Any) -> None:
    """Runs all jobs of a judgement; wrong: fields of the first finding on hidden cases."""
    for job in jobs(client, row["submission_id"]):
        if job["state"] == "queued":
            run_id, request = run_of(lab, job["id"])
            outcome = measured(lab, request, times, **(wrong if request.spec.sealed else {}))
            with lab.database.session() as session:
                runs.finish_patch_run(session, run_id, outcome, RunTimes())


def judged(client: TestClient, lab: Lab, keeper: JudgementKeeper, times: float = 0.5, **wrong: Any) -> dict[str, Any]:
    """A judgement that has ended."""
    row = ask(client).json()
    finish(lab, client, row, times, **wrong)
    keeper.sweep()
    answer: dict[str, Any] = client.get(f"{API}/judgements/{row['id']}").json()
    return answer


def test_a_patch_is_judged_and_its_receipt_verifies(client: TestClient, lab: Lab, keeper: JudgementKeeper) -> None:
    answer = ask(client)
    assert answer.status_code == 201, answer.text
    row = answer.json()
    assert (row["state"], row["verdict"], row["receipt"]) == ("pending", None, None)
    keeper.sweep()
    assert client.get(f"{API}/judgements/{row['id']}").json() == row, "nothing is decided before the jobs have run"
    finish(lab, client, row)
    keeper.sweep()
    ended = client.get(f"{API}/judgements/{row['id']}").json()
    assert (ended["state"], ended["verdict"], ended["at_least"]) == ("ended", "faster", 2.0)
    statement = client.post(f"{API}/receipts/verify", json={"receipt": ended["receipt"]}).json()["statement"]
    assert statement["base"] == lab.shas[0]
    assert [(time["case"], time["outcome"]) for time in statement["public"]["times"]] == [(PUBLIC, "faster")]
    assert statement["hidden"]["verdict"] == "faster"
    assert len(statement["hidden"]["cases"]) == 1
    assert statement["device"]["key"] == "test-cpu"
    assert statement["environment"]["facts"]["torch"] == "2.13.0"
    brief = client.get(f"{API}/judgements/{row['id']}?brief").json()
    assert (brief["verdict"], brief["hidden_cases"]) == ("faster", "at least 2 times as fast")
    shown = client.post("/receipts/verify", data={"receipt": ended["receipt"]})
    assert "This server signed exactly this" in shown.text


def test_a_client_chooses_nothing_that_is_measured(client: TestClient) -> None:
    chosen = {"base": "main", "cases": [PUBLIC], "seed": 0, "variants": ["v2"], "device": "other", "priority": 10}
    assert errors(ask(client, **chosen, budget_seconds=1e9)).keys() == {*chosen, "budget_seconds"}


def test_a_patch_changes_no_definition(client: TestClient) -> None:
    for old, new in (("return scale(x)", "return x * 2"), ("return helper(x)", "return helper(x")):
        refused = errors(ask(client, files={"kernels/square.py": OPERATOR.replace(old, new)}))
        assert "kernels/square.py" in refused["patch"]


OTHERS = ("warpwatch.toml", "kernels/__init__.py", "kernels/helper.py", "torch.py", "csrc/common/a.h", "csrc/a.cpp")
OUTSIDE = ("../a.py", "/etc/passwd", ".git/config", "csrc/.GIT/config", "a\nb", "csrc/square/../../b", "", "a\t1")


def test_a_patch_changes_no_other_file(client: TestClient) -> None:
    for name in OTHERS:
        assert name in errors(ask(client, files=FASTER | {name: "x = 1\n"}))["patch"]
    for name in OUTSIDE:
        assert errors(ask(client, files=FASTER | {name: "x"})).keys() == {"files"}, name


def test_native_sources_may_change(client: TestClient) -> None:
    assert ask(client, files={"csrc/square/a.cpp": "int b;\n"}).status_code == 201
    link = "diff --git a/csrc/square/l b/csrc/square/l\nnew file mode 120000\n--- /dev/null\n+++ b/csrc/square/l\n"
    link += "@@ -0,0 +1 @@\n+/etc/passwd\n\\ No newline at end of file\n"
    assert "symbolic link" in errors(ask(client, files=None, patch=link))["patch"]


LEAK = f"it was called with {HIDDEN}"


def sealed_runs(client: TestClient, lab: Lab, row: dict[str, Any]) -> list[tuple[int, int, JobRequest]]:
    """Job, run and request of every sealed job."""
    begun = [(job["id"], *run_of(lab, job["id"])) for job in jobs(client, row["submission_id"])]
    return [item for item in begun if item[2].spec.sealed]


def everything_told(client: TestClient, row: dict[str, Any]) -> str:
    """All that a reader of the server can get about a judgement."""
    submission = row["submission_id"]
    paths = [f"/runs/{submission}", "/runs", "/runs/jobs", "/runs/judgements", "/settings/devices"]
    paths += [f"{API}/{name}" for name in ("jobs", "jobs.csv", "submissions", "judgements", "devices", "workers")]
    paths += [f"{API}/submissions/{submission}{end}" for end in ("", "/report", "/progress", "/verdicts")]
    paths += [f"{API}/submissions/{submission}?brief", f"{API}/judgements/{row['id']}", f"{API}/alarms"]
    paths += [f"{API}/repositories/kernels/export", f"{API}/search?repository=kernels&q=8191", f"{API}/lanes"]
    for job in jobs(client, submission):
        number = job["id"]
        paths += [f"{API}/jobs/{number}{end}" for end in ("", "/log", "/outcome")] + [f"/jobs/{number}"]
    return "\n".join(client.get(path).text for path in paths)


def write(lab: Lab, how: str, job: int, run: int, request: JobRequest) -> None:
    """What a worker sends while a sealed job runs, and at its end, with the hidden case in it."""
    with lab.database.session() as session:
        runs.append_log(session, run, LEAK)
        runs.set_progress(session, run, 3, 7, LEAK, ("v1", HIDDEN))
        if how == "failure":
            runs.fail_run(session, run, LEAK, retry=False, reason=Reason.INTERNAL_ERROR)
        elif how == "retried":
            runs.fail_run(session, run, LEAK, retry=True)
        elif how == "lost":
            session.execute(text("UPDATE jobs SET max_attempts = 1 WHERE id = :id"), {"id": job})
            runs.lose_run(session, run, LEAK)
        elif how == "interrupted":
            found = measured(lab, request).findings
            runs.release_run(session, run, PartialOutcome(lab.environment.key, found))
        elif how == "outcome":
            wrong: dict[str, Any] = {} if request.kind is JobKind.COMPARE else {"message": LEAK, "status": Status.WRONG}
            runs.finish_patch_run(session, run, measured(lab, request, **wrong), RunTimes())


@pytest.mark.parametrize("how", ["running", "failure", "retried", "lost", "interrupted", "outcome"])
def test_nothing_that_is_told_names_a_hidden_case(
    client: TestClient, lab: Lab, keeper: JudgementKeeper, how: str
) -> None:
    row = ask(client).json()
    begun = sealed_runs(client, lab, row)
    assert [request.kind for _, _, request in begun] == ["check", "bench", "compare"]
    assert all(request.spec.cases == [HIDDEN] for _, _, request in begun), "only the worker gets them"
    for job, run, request in begun:
        write(lab, how, job, run, request)
    keeper.sweep()
    told = everything_told(client, row)
    assert PUBLIC in told
    assert "8191" not in told
    assert LEAK not in told
    assert Reason.INTERNAL_ERROR not in told, "a kernel may choose how its job fails"
    assert not [seed for seed in {str(request.spec.seed) for _, _, request in begun} if seed in told]


def test_a_receipt_names_no_hidden_case(client: TestClient, lab: Lab, keeper: JudgementKeeper) -> None:
    row = judged(client, lab, keeper, status=Status.WRONG, message=LEAK)
    assert row["verdict"] == "wrong"
    told = json.dumps(statement_of(client, row)) + everything_told(client, row)
    assert HIDDEN not in told
    assert LEAK not in told
    with lab.database.session() as session:
        assert session.scalars(text("SELECT outcome FROM sealed_jobs")).all() == [None] * 3


def statement_of(client: TestClient, row: dict[str, Any]) -> dict[str, Any]:
    statement: dict[str, Any] = client.post(f"{API}/receipts/verify", json={"receipt": row["receipt"]}).json()[
        "statement"
    ]
    return statement


def test_times_on_hidden_cases_are_told_in_steps(client: TestClient, lab: Lab, keeper: JudgementKeeper) -> None:
    """A kernel could choose its times by what it saw."""
    told = [statement_of(client, judged(client, lab, keeper, times))["hidden"] for times in (0.45, 0.38, 0.7, 1.4)]
    assert [hidden.pop("cases") and hidden.pop("seeds") and hidden["at_least"] for hidden in told] == [2, 2, 1.35, None]
    assert told[0] == told[1]
    assert told[3] == {"verdict": "slower", "at_least": None}


def test_digests_of_two_receipts_cannot_be_compared(client: TestClient, lab: Lab, keeper: JudgementKeeper) -> None:
    first, second = (statement_of(client, judged(client, lab, keeper)) for _ in range(2))
    assert not set(first["hidden"]["cases"]) & set(second["hidden"]["cases"])
    assert first["hidden_set"] == second["hidden_set"]


def test_hidden_cases_are_drawn_anew(client: TestClient, lab: Lab, settings: Settings) -> None:
    cases = [f"n={8191 + 2 * number},f32,fwd" for number in range(40)]
    rules = RULES.replace(f'["{HIDDEN}"]', f"{cases}\ndraw = 20").replace("'", '"')
    (judgements_folder(settings.home) / "rules.toml").write_text(rules)
    draws = []
    for _ in range(2):
        (_, _, request), *others = sealed_runs(client, lab, ask(client).json())
        assert all(other.spec.cases == request.spec.cases for _, _, other in others)
        draws.append(set(request.spec.cases or ()))
    assert [len(draw) for draw in draws] == [20, 20]
    assert draws[0] != draws[1], "by chance in one of 138 billion runs"
    assert draws[0] | draws[1] <= set(cases)


def test_a_leaderboard_shows_the_best_of_each_client(
    client: TestClient, lab: Lab, keeper: JudgementKeeper, settings: Settings
) -> None:
    for times in (0.7, 0.45, 1.4):
        judged(client, lab, keeper, times)
    assert client.get(f"{API}/judgements/leaders").status_code == 409, "it is off unless the owner wants it"
    assert "Leaderboard" not in client.get("/runs/judgements").text
    (judgements_folder(settings.home) / "rules.toml").write_text(f"leaderboard = true\n{RULES}")
    rows = client.get(f"{API}/judgements/leaders").json()
    assert [(row["client"], row["at_least"], row["judgement"]) for row in rows] == [("local", 2.0, 2)]
    assert "Leaderboard" in client.get("/runs/judgements").text
    with lab.database.session() as session:
        session.execute(text("""UPDATE judgements SET facts = facts || '{"hidden_set": "other"}' WHERE id = 3"""))
    assert client.get(f"{API}/judgements/leaders").json() == [], "nobody was judged on today's cases"


def test_a_judgement_is_decided_once(client: TestClient, lab: Lab, keeper: JudgementKeeper) -> None:
    row = judged(client, lab, keeper)
    first = jobs(client, row["submission_id"])[-1]["id"]
    assert client.post(f"{API}/jobs/{first}/retry").status_code == 409
    assert client.post(f"{API}/submissions/{row['submission_id']}/retry").status_code == 409
    assert client.post(f"{API}/submissions/{row['submission_id']}/cancel").status_code == 200
    keeper.sweep()
    assert client.get(f"{API}/judgements/{row['id']}").json() == row


def test_the_number_of_answers_has_limits(client: TestClient, lab: Lab, keeper: JudgementKeeper) -> None:
    rows = [ask(client).json() for _ in range(2)]
    assert ask(client).status_code == 429, "two are open"
    priorities = [{job["priority"] for job in jobs(client, row["submission_id"])} for row in rows]
    assert priorities == [{0}, {-1}], "the first of another client comes before the second of this one"
    for row in rows:
        finish(lab, client, row)
    keeper.sweep()
    assert {judged(client, lab, keeper)["state"] for _ in range(3)} == {"ended"}
    refused = ask(client)
    assert refused.status_code == 429
    assert "tomorrow" in refused.json()["detail"]


def test_the_worst_hidden_case_decides(client: TestClient, lab: Lab, keeper: JudgementKeeper) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"status": Status.WRONG, "fault": Fault.CACHED_RESULT}, "cheats"),
        ({"status": Status.WRONG, "fault": Fault.WRONG_VALUES}, "wrong"),
        ({"status": Status.BUILD_FAILED}, "cannot_build"),
        ({"status": Status.UNSUPPORTED}, "failed"),
        ({"case": "n=1,f32,fwd"}, "failed"),
    ]
    for wrong, verdict in rows:
        row = judged(client, lab, keeper, **wrong)
        assert (row["verdict"], row["at_least"]) == (verdict, None)
        assert statement_of(client, row)["public"]["verdict"] == "faster"


@pytest.mark.parametrize(("reason", "verdict"), [(Reason.BASE_FAILED, "failed"), (None, "cheats")])
def test_a_base_that_cannot_be_measured_is_no_cheat_of_the_patch(reason: Reason | None, verdict: str) -> None:
    row = Comparison("v1", HIDDEN, "hot", "1", Status.WRONG, "", [], [], reason=reason)
    outcome = {"comparisons": [to_json(row)]}
    job = JudgedJob(
        1, JobKind.COMPARE, JobState.DONE, None, JobSpec(variants=["v1"]), [HIDDEN], 7, outcome, 1.0, 1.0, None
    )
    assert judge_cases([job], "cpu").verdict == verdict


def test_what_is_decided_takes_no_more_of_the_device(client: TestClient, lab: Lab, keeper: JudgementKeeper) -> None:
    row = ask(client).json()
    first = jobs(client, row["submission_id"])[0]
    run_id, request = run_of(lab, first["id"])
    with lab.database.session() as session:
        runs.finish_patch_run(session, run_id, measured(lab, request, status=Status.WRONG), RunTimes())
    keeper.sweep()
    assert {job["state"] for job in jobs(client, row["submission_id"])[1:]} == {"cancelled"}
    keeper.sweep()
    assert client.get(f"{API}/judgements/{row['id']}").json()["verdict"] == "wrong"


def test_a_budget_ends_a_judgement(client: TestClient, lab: Lab, keeper: JudgementKeeper) -> None:
    row = ask(client).json()
    run_of(lab, jobs(client, row["submission_id"])[0]["id"])
    with lab.database.session() as session:
        session.execute(text("UPDATE runs SET started_at = now() - interval '61 seconds'"))
    for _ in range(2):
        keeper.sweep()
    assert client.get(f"{API}/judgements/{row['id']}").json()["verdict"] == "over_budget"


def test_a_sealed_job_that_takes_a_second_step_tells_nothing_else(
    client: TestClient, lab: Lab, keeper: JudgementKeeper
) -> None:
    """Its time is what kernel code chooses, so its time and a word together would tell more than the word."""
    row = ask(client).json()
    begun = sealed_runs(client, lab, row)
    assert [request.spec.step_seconds for _, _, request in begun] == [10] * 3
    for job, run, request in begun[:2]:
        write(lab, "outcome", job, run, request)
    with lab.database.session() as session:
        late = {"run": begun[1][1]}
        session.execute(text("UPDATE runs SET started_at = finished_at - interval '20 seconds' WHERE id = :run"), late)
    for _ in range(2):
        keeper.sweep()
    ended = client.get(f"{API}/judgements/{row['id']}").json()
    assert ended["verdict"] == "over_budget"
    assert statement_of(client, ended)["hidden"]["verdict"] == "over_budget", "not wrong, which it was as well"


def test_a_judgement_that_fails_keeps_no_other_waiting(
    client: TestClient, lab: Lab, keeper: JudgementKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [ask(client).json() for _ in range(2)]
    for row in rows:
        finish(lab, client, row)
    with lab.database.session() as session:
        session.execute(text("UPDATE patch_outcomes SET outcome = '{}' WHERE job_id = 1"))
    for _ in range(2):
        keeper.sweep()
    states = [client.get(f"{API}/judgements/{row['id']}").json()["state"] for row in rows]
    assert states == ["pending", "ended"]
    assert [record.message for record in caplog.records if record.name.endswith("judgement_keeper")] == [
        "judgement 1 could not be judged; the others go on"
    ], "it is looked at again after a pause, and not at every sweep"


def test_the_owners_file_is_never_quoted(client: TestClient, settings: Settings) -> None:
    rules = judgements_folder(settings.home) / "rules.toml"
    rules.write_text(RULES + 'hidden = "twice"\n')
    answer = ask(client)
    assert answer.status_code == 503
    assert "8191" not in answer.text
    rules.write_text(RULES.replace("step = 10", "step = 20"))
    assert ask(client).status_code == 503, "three steps leave too little of the seconds"
    rules.write_text(RULES)
    assert "8191" not in ask(client, operator="cube").text
    assert ask(client, repository="other").status_code == 422
    rules.unlink()
    assert ask(client).status_code == 409
    assert judgements_folder(settings.home) in secret_paths(settings.home), "kernel code on this machine sees it not"


def forge(receipt: str, header: dict[str, Any], payload: dict[str, Any] | None = None, key: bytes = b"") -> str:
    """The receipt with another header and payload; signed with HMAC where a key is given."""
    parts = receipt.split(".")
    head = json.loads(decode(parts[0])) | header
    body = json.loads(decode(parts[1])) | (payload or {})
    signed = ".".join(encode(json.dumps(item).encode()) for item in (head, body))
    return f"{signed}.{encode(hmac.new(key, signed.encode(), 'sha256').digest()) if key else parts[2]}"


def encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_a_changed_receipt_proves_nothing(tmp_path: Path) -> None:
    ours, other = receipt_key(tmp_path / "ours"), receipt_key(tmp_path / "other")
    assert (tmp_path / "ours" / "judgements" / "receipt-key.json").stat().st_mode & 0o077 == 0
    keys = public_keys(tmp_path / "ours")
    assert "d" not in keys["keys"][0]
    receipt = sign_receipt(ours, {"verdict": "wrong"})
    assert verify_receipt(f" {receipt}\n", keys) == {"verdict": "wrong"}
    head, body, signature = receipt.split(".")
    better = {"verdict": "faster"}
    public = json.dumps(keys["keys"][0]).encode()
    forged = [
        forge(receipt, {}, better),
        forge(receipt, {"alg": "none"}, better),
        forge(receipt, {"alg": "none"}, better).rsplit(".", 1)[0] + ".",
        forge(receipt, {"alg": "HS256"}, better, key=public),
        forge(receipt, {"alg": "HS256"}, better, key=base64.urlsafe_b64decode(keys["keys"][0]["x"] + "=")),
        forge(sign_receipt(other, better), {"kid": ours.kid}),
        forge(sign_receipt(other, better), {"kid": ours.kid, "jwk": public_keys(tmp_path / "other")["keys"][0]}),
        sign_receipt(other, better),
        jws.serialize_compact({"alg": "ES256", "kid": ours.kid, "typ": "JWT"}, b'{"verdict": "faster"}', ours),
        jws.serialize_compact({"alg": "ES256", "kid": ours.kid, "typ": "warpwatch-receipt"}, b"[]", ours),
        f"{head}.{body}.",
        f"{head}.{body}",
        f"{head}.{body}.{encode(bytes(64))}",
        f"{head}.{encode(json.dumps(better).encode())}.{signature}",
        receipt[:-4] + "AAAA",
        "",
        "a.b.c",
        "x" * 600_000,
    ]
    for forgery in forged:
        with pytest.raises(ReceiptError):
            verify_receipt(forgery, keys)
    # Of another kind, none at all, and the secret key itself.
    untrusted: list[Any] = [[{"kty": "oct", "k": encode(bytes(32))}], [], 1, [ours.as_dict(private=True)]]
    for wrong in untrusted:
        with pytest.raises(ReceiptError):
            verify_receipt(receipt, {"keys": wrong})


def test_the_command_verifies_a_receipt(client: TestClient, lab: Lab, keeper: JudgementKeeper, tmp_path: Path) -> None:
    row, file, keys = judged(client, lab, keeper), tmp_path / "receipt.jws", tmp_path / "keys.json"
    file.write_text(row["receipt"])
    keys.write_text(client.get(f"{API}/receipts/keys").text)
    words = ["receipt", "verify", str(file), "--keys", str(keys)]
    assert json.loads(CliRunner().invoke(commands, words).stdout)["verdict"] == "faster"
    file.write_text(forge(row["receipt"], {}, {"verdict": "same"}))
    refused = CliRunner().invoke(commands, words)
    assert refused.exit_code == 1
    assert "was changed" in refused.stderr
