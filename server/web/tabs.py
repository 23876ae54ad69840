"""The three pages of settings and their tabs, with the addresses that lead to them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlencode


class RepositoryTab(StrEnum):
    GENERAL = "general"
    CODE_HOST = "code-host"
    CI = "ci"
    NOTIFICATIONS = "notifications"
    SCHEDULES = "schedules"
    RETENTION = "retention"
    MUTED = "muted"
    VIEWS = "views"
    WATCHES = "watches"


class PeopleTab(StrEnum):
    USERS = "users"
    TOKENS = "tokens"
    AUDIT = "audit"


class DevicesTab(StrEnum):
    DEVICES = "devices"
    KEYS = "keys"
    HEALTH = "health"
    SELF_TESTS = "self-tests"


TITLES = {
    RepositoryTab.GENERAL: "General",
    RepositoryTab.CODE_HOST: "Code host",
    RepositoryTab.CI: "CI access",
    RepositoryTab.NOTIFICATIONS: "Notifications",
    RepositoryTab.SCHEDULES: "Schedules",
    RepositoryTab.RETENTION: "Retention",
    RepositoryTab.MUTED: "Muted series",
    RepositoryTab.VIEWS: "Saved views",
    RepositoryTab.WATCHES: "Watches",
    PeopleTab.USERS: "Users",
    PeopleTab.TOKENS: "API tokens",
    PeopleTab.AUDIT: "Audit log",
    DevicesTab.DEVICES: "Devices",
    DevicesTab.KEYS: "Worker keys",
    DevicesTab.HEALTH: "Health",
    DevicesTab.SELF_TESTS: "Self-tests",
}


@dataclass(frozen=True, slots=True)
class SettingsArea:
    """One page of settings. tabs: titles by name, in the order in which the page lists them."""

    path: str
    title: str
    tabs: dict[str, str]


AREAS = [
    SettingsArea("/settings/repository", "Repository", {tab: TITLES[tab] for tab in RepositoryTab}),
    SettingsArea("/settings/people", "People", {tab: TITLES[tab] for tab in PeopleTab}),
    SettingsArea("/settings/devices", "Devices", {tab: TITLES[tab] for tab in DevicesTab}),
]


def repository_tab(repository: str, tab: RepositoryTab) -> str:
    """The address of a tab of a repository's settings."""
    return f"/settings/repository?{urlencode({'repository': repository, 'tab': tab})}"


def people_tab(tab: PeopleTab) -> str:
    return f"/settings/people?tab={tab}"


def devices_tab(tab: DevicesTab) -> str:
    return f"/settings/devices?tab={tab}"
