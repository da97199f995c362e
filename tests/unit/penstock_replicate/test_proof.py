from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.files import Files
from penstock_replicate.wire.proof import is_proof, make_nonce, prove, read_secret

SECRET = b"0123456789abcdef"


def test_only_who_knows_the_secret_proves_it() -> None:
    master, follower = make_nonce(), make_nonce()
    proof = prove(SECRET, "follower", master, follower)
    assert is_proof(proof, SECRET, "follower", master, follower)
    assert not is_proof(proof, SECRET, "master", master, follower)
    assert not is_proof(proof, b"another secret!!", "follower", master, follower)
    assert not is_proof(proof, SECRET, "follower", make_nonce(), follower)
    assert not is_proof(proof, SECRET, "follower", master, make_nonce())


def test_a_secret_file_is_read_without_white_space(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    assert read_secret(Files(), str(path)) == SECRET
    assert read_secret(Files(), "") is None
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="has 5 bytes"):
        read_secret(Files(), str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_secret(Files(), str(tmp_path / "missing"))
