"""A byte-pair tokenizer, trained and applied on a page and by REST; the server stores nothing of it.

Texts are small, because the server computes in plain Python. `warpwatch tokenizer` does the same for any corpus.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData

from warpwatch.byte_pairs import BytePairs, from_json, train
from warpwatch.db.reads.code import list_operators
from warpwatch.server.http.problems import FieldError, Problem, documented
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.render import PageScope, Scope

MOST_SYMBOLS, MOST_STRINGS, MOST_MERGES = 50_000, 2000, 2000
MOST_WORK = 5_000_000
"""Symbols times merges, which take about a second."""
Text = Annotated[str, Field(max_length=MOST_SYMBOLS)]
File = Annotated[dict[str, Any], Field(description="The content of a `tokenizer.json`.")]


class TrainRequest(BaseModel):
    """A corpus and how many pairs of tokens to merge."""

    model_config = ConfigDict(extra="forbid")
    strings: list[Text] = Field(min_length=1, max_length=MOST_STRINGS, description="Pairs never span two strings.")
    merges: int = Field(100, ge=0, le=MOST_MERGES)


class EncodeRequest(BaseModel):
    """A tokenizer and strings of its alphabet."""

    model_config = ConfigDict(extra="forbid")
    tokenizer: File
    strings: list[Text] = Field(max_length=MOST_STRINGS)


class DecodeRequest(BaseModel):
    """A tokenizer and the numbers of tokens, a list for each string."""

    model_config = ConfigDict(extra="forbid")
    tokenizer: File
    tokens: list[Annotated[list[int], Field(max_length=MOST_SYMBOLS)]] = Field(max_length=MOST_STRINGS)


class TokenizerFile(BaseModel):
    """A trained tokenizer, in the format of Hugging Face's tokenizers."""

    tokenizer: File


class EncodedStrings(BaseModel):
    """The numbers of the tokens of each string."""

    tokens: list[list[int]]


class DecodedStrings(BaseModel):
    """The strings that tokens stand for."""

    strings: list[str]


api = APIRouter(tags=["tokenizer"])


@api.post("/tokenizer/train", responses=documented(413, 422))
def train_tokenizer(body: TrainRequest) -> TokenizerFile:
    """Train a byte-pair tokenizer on strings, by the rules of the operator bpe_train. Nothing is stored."""
    _refuse_long("strings", body.strings)
    symbols = sum(map(len, body.strings))
    if symbols * body.merges > MOST_WORK:
        remedy = f"use at most {MOST_WORK // symbols} merges, or `warpwatch tokenizer train`, which is native"
        raise _refusal("merges", f"{body.merges} merges of {symbols} symbols take too long here", remedy)
    return TokenizerFile(tokenizer=json.loads(train(body.strings, body.merges)))


@api.post("/tokenizer/encode", responses=documented(413, 422))
def encode_strings(body: EncodeRequest) -> EncodedStrings:
    """Encode strings with a tokenizer that this service, `warpwatch tokenizer` or Hugging Face's tokenizers trained."""
    _refuse_long("strings", body.strings)
    pairs = _read(body.tokenizer)
    try:
        return EncodedStrings(tokens=[pairs.encode(string) for string in body.strings])
    except ValueError as error:
        raise _refusal("strings", str(error), "use symbols of the corpus that it was trained on") from None


@api.post("/tokenizer/decode", responses=documented(413, 422))
def decode_tokens(body: DecodeRequest) -> DecodedStrings:
    """Decode tokens to strings."""
    pairs = _read(body.tokenizer)
    try:
        strings = [pairs.decode(row) for row in body.tokens]
    except ValueError as error:
        raise _refusal("tokens", str(error), "use the tokenizer that encoded them") from None
    _refuse_long("tokens", strings)
    return DecodedStrings(strings=strings)


def _read(file: dict[str, Any]) -> BytePairs:
    try:
        return from_json(json.dumps(file))
    except ValueError as error:
        remedy = "send a tokenizer that /tokenizer/train returned, or a plain BPE file"
        raise _refusal("tokenizer", str(error), remedy) from None


def _refuse_long(field: str, strings: list[str]) -> None:
    if sum(map(len, strings)) > MOST_SYMBOLS:
        remedy = "use `warpwatch tokenizer`, which takes any corpus"
        raise _refusal(field, f"the strings have more than {MOST_SYMBOLS} symbols", remedy)


def _refusal(field: str, message: str, remedy: str) -> Problem:
    return Problem(422, "the tokenizer cannot do this", [FieldError(field=field, message=message, remedy=remedy)])


router = APIRouter()
EXAMPLE = {"strings": "MKVLAAMKVL\nAAMKVLMK\nVLMKVL", "merges": "4", "tokenizer": "", "tokens": ""}


@router.get("/tokenizer")
def page(page: PageScope) -> Response:
    """The form with a small corpus."""
    return _show(page, EXAMPLE)


@router.post("/tokenizer")
def apply(page: PageScope, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Trains, encodes or decodes what the form holds, and shows the form with what came of it."""
    entered = EXAMPLE | {name: str(form[name]).replace("\r\n", "\n") for name in EXAMPLE if name in form}
    strings = [line for line in entered["strings"].split("\n") if line]
    try:
        if form.get("action") == "train":
            trained = train_tokenizer(TrainRequest.model_validate({"strings": strings, "merges": entered["merges"]}))
            entered |= {"tokenizer": json.dumps(trained.tokenizer, ensure_ascii=False), "tokens": ""}
        else:
            tokenizer = _entered_file(entered["tokenizer"])
            if form.get("action") == "decode":
                rows = [line.split() for line in entered["tokens"].split("\n") if line.strip()]
                body = DecodeRequest.model_validate({"tokenizer": tokenizer, "tokens": rows})
                entered["strings"] = "\n".join(decode_tokens(body).strings)
            else:
                encoded = encode_strings(EncodeRequest.model_validate({"tokenizer": tokenizer, "strings": strings}))
                entered["tokens"] = "\n".join(" ".join(map(str, row)) for row in encoded.tokens)
    except (ValidationError, Problem) as error:
        return _show(page, entered, form_errors(error))
    return _show(page, entered)


def _entered_file(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _refusal("tokenizer", "this is no JSON", "train a tokenizer, or paste a tokenizer.json") from None


def _show(page: Scope, entered: dict[str, str], errors: dict[str, str] | None = None) -> Response:
    """The form, and the tokens of a tokenizer that can be read."""
    tokens: list[tuple[int, str]] = []
    if entered["tokenizer"] and not errors:
        numbers = from_json(entered["tokenizer"]).numbers
        tokens = sorted((number, text) for text, number in numbers.items())
    operators = list_operators(page.session, page.repository.id) if page.repository else []
    return page.page(
        "tokenizer.html",
        status=422 if errors else 200,
        entered=entered,
        errors=errors or {},
        tokens=tokens,
        has_operator=any(row.name == "bpe_train" for row in operators),
    )
