import pytest

from penstock_replicate.master.ha_options import HaOptions, split_listen


def test_the_defaults_let_nobody_wait_and_only_this_machine_connect() -> None:
    options = HaOptions()
    assert (options.listen, options.in_sync_replicas) == ("127.0.0.1:10912", 1)


def test_an_address_is_split() -> None:
    assert split_listen("0.0.0.0:0") == ("0.0.0.0", 0)
    assert split_listen("[::1]:10912") == ("::1", 10912)


@pytest.mark.parametrize(
    "given", ["host", ":1", "host:", "host:x", "host:65536", "host:999999999", "host:0000001000000"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="listen is"):
        HaOptions(listen=given)


@pytest.mark.parametrize(
    "given", [{"in_sync_replicas": 0}, {"compress": "gzip"}, {"chunk_bytes": 5 << 20}, {"mib_per_s": -1}, {"timeout_ms": 0}]
)  # fmt: skip
def test_values_out_of_range_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        HaOptions(**given)  # type: ignore[arg-type]  # wrong on purpose
