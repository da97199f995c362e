import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock_replicate.wire.tls import client_context, server_context


def test_without_a_certificate_there_is_no_tls() -> None:
    assert server_context("", "", "") is None
    assert client_context("", "", "") is None


def test_half_a_configuration_is_an_error() -> None:
    for wrong in (("", "key", ""), ("", "", "ca")):
        with pytest.raises(ConfigError, match="need tls_cert"):
            server_context(*wrong)
    with pytest.raises(ConfigError, match="need tls_ca"):
        client_context("cert", "", "")


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no\.pem"):
        server_context("no.pem", "", "")
    with pytest.raises(ConfigError, match=r"no\.pem"):
        client_context("", "", "no.pem")


def test_a_key_with_a_password_is_an_error_and_no_question(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -passout pass:four -keyout {both}.key -out {both}.crt -days 2 -subj /CN=x"
    subprocess.run(command.split(), check=True, capture_output=True)
    asked = f"from penstock_replicate.wire.tls import server_context as s; s({f'{both}.crt'!r}, {f'{both}.key'!r}, '')"
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, timeout=20, check=False, start_new_session=True
    )  # fmt: skip
    assert b"ConfigError" in done.stderr
    assert b"pass phrase" not in done.stdout + done.stderr
