"""The shared secret: each side proves that it knows it, and neither sends it.

    proof := HMAC-SHA256(secret, "penstock replication 1" 0x00 role 0x00 master_nonce follower_nonce)

`role` is that of the side that proves, so a proof cannot be sent back to its author. The nonces are new in each connection, so it cannot
be sent again later. The proof does not protect what follows: whoever can change bytes on the way is kept out by TLS.
"""

import hmac
import secrets
from hashlib import sha256
from pathlib import Path
from typing import Literal

from penstock.errors import ConfigError
from penstock.files import Files
from penstock_replicate.wire.limits import NONCE_BYTES

Role = Literal["master", "follower"]
PROOF_BYTES = 32
SECRET_BYTES_MIN = 16
_SECRET_BYTES_MAX = 64 << 10
_PURPOSE = b"penstock replication 1\0"


def make_nonce() -> str:
    """Return a new random nonce, as hexadecimal text."""
    return secrets.token_hex(NONCE_BYTES)


def prove(secret: bytes, role: Role, master_nonce: str, follower_nonce: str) -> bytes:
    """Return the proof of one side."""
    nonces = bytes.fromhex(master_nonce) + bytes.fromhex(follower_nonce)
    return hmac.digest(secret, _PURPOSE + role.encode() + b"\0" + nonces, sha256)


def is_proof(
    proof: bytes, secret: bytes, role: Role, master_nonce: str, follower_nonce: str
) -> bool:
    """Return whether `proof` is that of a side in `role` that knows the secret; takes equally long for any wrong one."""
    return hmac.compare_digest(proof, prove(secret, role, master_nonce, follower_nonce))


def read_secret(files: Files, path: str) -> bytes | None:
    """Return the secret in a file, without white space around it; None without a path."""
    if not path:
        return None
    try:
        secret = files.read_whole(Path(path), _SECRET_BYTES_MAX).strip()
    except OSError as error:
        raise ConfigError(f"secret_file {path!r} cannot be read: {error}") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"secret_file {path!r} has {len(secret)} bytes; it must have {SECRET_BYTES_MIN} or more,"
            " such as `openssl rand -hex 32` prints"
        )
    return secret
