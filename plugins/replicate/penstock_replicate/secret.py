"""The secret that a master shares with its followers, and the encryption of their connections.

Each side proves that it knows the secret, by an HMAC over a number that the other one has just drawn. That keeps others
out; it does not keep them from reading, or from changing bytes on the way, as TLS does.
"""

import hmac
import secrets
import ssl
from pathlib import Path

import attrs

KEY_BYTES_MIN, KEY_BYTES_MAX = 16, 4096


def read_key(path: str | Path) -> bytes:
    """Return the secret in a file, without white space around it; raises `OSError`, or `ValueError` if it is unfit."""
    with Path(path).open("rb") as file:
        key = file.read(KEY_BYTES_MAX + 1).strip()
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise ValueError(f"{path} has {len(key)} bytes, not {KEY_BYTES_MIN} to {KEY_BYTES_MAX}")
    return key


def master_tls(cert: str, key: str | None) -> ssl.SSLContext:
    """Return the context of a master; raises `OSError` if certificate or key, PEM files, cannot be used."""
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A key with a passphrase is refused; else OpenSSL would ask for it on the terminal.
    found.load_cert_chain(cert, key, lambda: b"")
    return found


def follower_tls(ca: str | Path) -> ssl.SSLContext:
    """Return the context of a follower, which trusts the certificates in a PEM file; raises `OSError`."""
    return ssl.create_default_context(cafile=str(ca))


@attrs.frozen
class Secret:
    """What one side of one connection knows.

    Attributes:
        key: the shared secret.
        nonce: the own number, for one connection; by default one that nobody can foresee.
    """

    key: bytes = attrs.field(repr=False)
    nonce: str = attrs.field(factory=lambda: secrets.token_hex(16))

    def proof(self, role: str, other: str) -> str:
        """Return the proof of a side, "master" or "follower", to the side whose number is `other`."""
        text = f"penstock {role} {self.nonce} {other}"
        return hmac.new(self.key, text.encode(), "sha256").hexdigest()

    def is_proved(self, role: str, other: str | None, proof: str | None) -> bool:
        """Return whether the other side, of that role and with the number `other`, has proved to know the secret."""
        if other is None or proof is None:
            return False
        theirs = attrs.evolve(self, nonce=other).proof(role, self.nonce)
        return hmac.compare_digest(theirs, proof)
