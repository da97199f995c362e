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
