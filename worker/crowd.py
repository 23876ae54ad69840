"""Lets children of several commits work at the same time, before the first of these children is timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpwatch.contract.activities import Activity
from warpwatch.worker.checkout import Checkout, close_at_once
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.reporter import CannotRunError, Reporter, Stopped


def load_at_once(checkouts: Sequence[Checkout], operator: str, reporter: Reporter) -> None:
    """Lets all children of these commits load the operator."""
    with checkouts[0].host.stopwatch.measure(Activity.START):
        _ask_at_once(checkouts, reporter, "cases", operator=operator)


def rehearse_at_once(
    checkouts: Sequence[Checkout], operator: str, variant: str, case: str, seed: int, reporter: Reporter
) -> None:
    """Lets all children of these commits use once what they measure the case with. Which of them cannot shows where
    they measure it."""
    with checkouts[0].host.stopwatch.measure(Activity.WARM_UP):
        _ask_at_once(checkouts, reporter, "rehearse", operator=operator, variant=variant, case=case, seed=seed)


def drop_at_once(checkouts: Sequence[Checkout]) -> None:
    """Ends the children in use and the retired ones; spare ones stay."""
    for checkout in checkouts:
        checkout.retire_child()
    close_at_once([child for checkout in checkouts for child in checkout.take_retired()])


def drop_idle_at_once(checkouts: Sequence[Checkout]) -> None:
    """Ends the spare and the retired children; those in use stay."""
    idle = [(*checkout.take_spares(), *checkout.take_retired()) for checkout in checkouts]
    close_at_once([child for children in idle for child in children])


def _ask_at_once(checkouts: Sequence[Checkout], reporter: Reporter, verb: str, **fields: Any) -> None:
    """One request to all children. One that fails is closed. Whoever asks for the commit then gets another one, and
    learns why."""
    try:
        children = [(checkout, child) for checkout in checkouts for child in checkout.await_children(reporter)]
        for _, child in children:
            child.send(verb, **fields)
        for checkout, child in children:
            try:
                child.receive(checkout.host.settings.case_timeout_seconds, reporter)
            except ChildFailure:
                checkout.discard(child)
    except (CannotRunError, Stopped):
        drop_at_once(checkouts)
        drop_idle_at_once(checkouts)
        raise
