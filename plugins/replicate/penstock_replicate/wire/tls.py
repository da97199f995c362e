"""TLS from the first byte, where it is configured. A RocketMQ peer cannot speak it on this port."""

import ssl

from penstock.errors import ConfigError


def server_context(cert: str, key: str, ca: str) -> ssl.SSLContext | None:
    """Return the context of a master: with `ca`, a follower must have a certificate that it signed. None without `cert`."""
    if not cert:
        if key or ca:
            raise ConfigError("tls_key and tls_ca need tls_cert, the certificate of this side")
        return None
    context = _made(ssl.PROTOCOL_TLS_SERVER)
    _load(context, cert, key, ca)
    if ca:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(cert: str, key: str, ca: str) -> ssl.SSLContext | None:
    """Return the context of a follower, which checks that `ca` signed the master's certificate, and that its host name is right.

    With `cert` it shows its own, if the master wants one. None without `ca`.
    """
    if not ca:
        if cert or key:
            raise ConfigError(
                "tls_cert and tls_key need tls_ca, which signed the master's certificate"
            )
        return None
    context = _made(ssl.PROTOCOL_TLS_CLIENT)
    _load(context, cert, key, ca)
    return context


def _made(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load(context: ssl.SSLContext, cert: str, key: str, ca: str) -> None:
    try:
        if cert:
            # Without a password OpenSSL would ask for one on the terminal, and wait.
            context.load_cert_chain(cert, key or None, password="")
        if ca:
            context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"TLS certificate {cert!r}, key {key!r} or CA {ca!r} cannot be used: {error}"
        ) from error
