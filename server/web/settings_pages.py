"""The settings: a page of a repository, of people and of devices. The module of each subject shows its tab."""

from __future__ import annotations

from fastapi import APIRouter, Query, Request, Response

from warpwatch.contract.words import TokenScope
from warpwatch.server.explanation.alarms import AlarmKind
from warpwatch.server.http.access import Asking, may
from warpwatch.server.http.problems import Problem
from warpwatch.server.http.service import Before, Config
from warpwatch.server.web import (
    access,
    accounts,
    alarms,
    channels,
    ci_identities,
    devices,
    forge,
    keeping,
    muted,
    proofs,
    repositories,
    saved_views,
    schedules,
    watches,
)
from warpwatch.server.web.choices import Text
from warpwatch.server.web.render import PageScope
from warpwatch.server.web.tabs import TITLES, DevicesTab, PeopleTab, RepositoryTab

router = APIRouter()


@router.get("/settings/repository")
def repository_settings(
    page: PageScope,
    settings: Config,
    tab: RepositoryTab = RepositoryTab.GENERAL,
    before: Before = None,
    person: Text = None,
) -> Response:
    """One tab of the settings of a repository. person: whose watches the tab of watches lists."""
    if page.repository is None:
        return page.page("welcome.html")
    match tab:
        case RepositoryTab.GENERAL:
            return repositories.show(page)
        case RepositoryTab.CODE_HOST:
            return forge.show(page, settings, before=before)
        case RepositoryTab.CI:
            return ci_identities.show(page, settings, before=before)
        case RepositoryTab.NOTIFICATIONS:
            return channels.show(page, before=before)
        case RepositoryTab.SCHEDULES:
            return schedules.show(page, before=before)
        case RepositoryTab.RETENTION:
            return keeping.show(page)
        case RepositoryTab.MUTED:
            return muted.show(page, before)
        case RepositoryTab.VIEWS:
            return saved_views.show(page, before=before)
        case RepositoryTab.WATCHES:
            return watches.show(page, person=person, before=before)


@router.get("/settings/people")
def people_settings(
    page: PageScope, settings: Config, caller: Asking, tab: PeopleTab | None = None, before: Before = None
) -> Response:
    """One tab of the settings of people. Only administrators see users and the audit log."""
    is_administrator = may(caller, TokenScope.ADMINISTER)
    tab = tab or (PeopleTab.USERS if is_administrator else PeopleTab.TOKENS)
    if tab is not PeopleTab.TOKENS and not is_administrator:
        detail = f"{TITLES[tab]} needs the scope {TokenScope.ADMINISTER}; {caller.name} has {caller.scope}"
        raise Problem(403, f"{detail}. An administrator can change it")
    match tab:
        case PeopleTab.USERS:
            return accounts.show(page, settings, before=before)
        case PeopleTab.TOKENS:
            return access.show_tokens(page, caller, before=before)
        case PeopleTab.AUDIT:
            return access.show_audit(page, before)


@router.get("/settings/devices")
def devices_settings(
    page: PageScope,
    request: Request,
    settings: Config,
    tab: DevicesTab = DevicesTab.DEVICES,
    before: Before = None,
    kind: AlarmKind | None = Query(None),
) -> Response:
    """One tab of the settings of devices. kind: of the health problems that are listed."""
    match tab:
        case DevicesTab.DEVICES:
            return devices.show(page, settings)
        case DevicesTab.KEYS:
            return devices.show_keys(page, before=before)
        case DevicesTab.HEALTH:
            return alarms.show(page, request, kind)
        case DevicesTab.SELF_TESTS:
            return proofs.show(page)
