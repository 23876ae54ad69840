"""Receipts: signed statements of what a judgement measured, and their keys.

A receipt is a JWS (RFC 7515) in its compact form, signed with ES256 by a key that lies in the server's data directory.
Whoever has the public key, which the server shows as a JWKS, can verify a receipt without the server.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet

from warpwatch.contract.data_folder import judgements_folder

TYPE = "warpwatch-receipt"
"""Media type in the header of a receipt: a token of another purpose is no receipt, whoever signed it."""
KEY_FILE = "receipt-key.json"
MOST_BYTES = 500_000
_ALGORITHM = "ES256"
STEPS = (1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0, 5.0, 10.0)
"""What speed-ups on hidden cases are rounded down to. A kernel sees the hidden cases and chooses how long it takes, so
an exact time would carry out whatever it wants to tell; ten steps carry three bits."""


class ReceiptError(ValueError):
    """A receipt that proves nothing; the message says why."""


def receipt_key(home: Path) -> ECKey:
    """The key that this server signs with, made at its first use."""
    path = judgements_folder(home) / KEY_FILE
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = ECKey.generate_key("P-256", {"alg": _ALGORITHM, "use": "sig"}, private=True, auto_kid=True)
        partial = path.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(made.as_dict(private=True), file)
        try:
            # Of two processes that make a key at once, the first one's stays.
            os.link(partial, path)
        except FileExistsError:
            pass
        finally:
            partial.unlink()
    return ECKey.import_key(json.loads(path.read_text()))


def public_keys(home: Path) -> dict[str, Any]:
    """The public key as a JWKS."""
    keys: dict[str, Any] = dict(KeySet([receipt_key(home)]).as_dict(private=False))
    return keys


def sign_receipt(key: ECKey, statement: Mapping[str, Any]) -> str:
    """The receipt that states this."""
    content = json.dumps(statement, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()
    return jws.serialize_compact({"alg": _ALGORITHM, "kid": key.kid, "typ": TYPE}, content, key)


def verify_receipt(receipt: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """What a receipt states; ReceiptError unless one of the keys of a JWKS has signed exactly this."""
    try:
        trusted = KeySet.import_key_set(dict(keys))  # type: ignore[arg-type]  # joserfc checks what JSON holds.
        if any(key.is_private or key.key_type != "EC" for key in trusted.keys):
            raise ReceiptError("the keys are no JWKS of a server's public keys")
    except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ReceiptError("the keys are no JWKS of a server's public keys") from error
    if len(receipt) > MOST_BYTES:
        raise ReceiptError("this is no receipt: it is too long")
    message = "the signature does not fit: the receipt was changed, or another server signed it"
    try:
        # A header may name any algorithm, `none` as well; only ours is accepted.
        signed = jws.deserialize_compact(receipt.strip().encode(), trusted, algorithms=[_ALGORITHM])
        if signed.headers().get("typ") != TYPE:
            raise ReceiptError("this is signed, but no receipt of a judgement")
        statement = json.loads(signed.payload)
    except (JoseError, ValueError) as error:
        if isinstance(error, ReceiptError):
            raise
        raise ReceiptError(message) from error
    if not isinstance(statement, dict):
        raise ReceiptError("this is signed, but states nothing")
    return statement


def digest(salt: str, value: object) -> str:
    """Stands for a hidden value in a receipt; whoever knows value and salt can make it anew."""
    return hashlib.sha256(f"{salt} {value}".encode()).hexdigest()
