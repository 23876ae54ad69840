"""The page that deletes a repository, once its name was typed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Response
from fastapi.responses import RedirectResponse

from warpwatch.db.deletion import mark_deleted
from warpwatch.server.http.service import repository_or_404
from warpwatch.server.pages.render import Page

router = APIRouter()


@router.get("/repositories/{name}/delete")
def confirm_deletion(page: Page, name: str) -> Response:
    return _form(page, name)


@router.post("/repositories/{name}/delete")
def delete(page: Page, name: str, typed: Annotated[str, Form(max_length=200)] = "") -> Response:
    repository = repository_or_404(page.session, name)
    if typed.strip() != name:
        return _form(page, name, {"typed": f"Type {name} to delete it."})
    mark_deleted(page.session, repository.id)
    return RedirectResponse("/", 303)


def _form(page: Page, name: str, errors: dict[str, str] | None = None) -> Response:
    doomed = repository_or_404(page.session, name)
    return page.page("repository_delete.html", status=422 if errors else 200, doomed=doomed, errors=errors or {})
