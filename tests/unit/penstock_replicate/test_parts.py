import attrs

from penstock_replicate.master.parts import MasterParts


def test_what_connections_share_does_not_change() -> None:
    assert {"log", "options", "copies", "secret"} <= {one.name for one in attrs.fields(MasterParts)}
    assert MasterParts.__setattr__ is not object.__setattr__
