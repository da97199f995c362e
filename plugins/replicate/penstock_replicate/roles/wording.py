"""What a status says, in one line for people."""

from penstock_replicate.roles.status_file import PeerStatus, ReplicaStatus

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024
_SECOND_MS, _MINUTE_S, _HOUR_S, _DAY_S = 1000, 60, 3600, 86400


def bytes_text(size: int) -> str:
    """Return a number of bytes, rounded, with its unit."""
    scaled, unit = float(size), 0
    while scaled >= _STEP and unit < len(_UNITS) - 1:
        scaled, unit = scaled / _STEP, unit + 1
    return f"{scaled:.1f} {_UNITS[unit]}" if unit else f"{size} B"


def span_text(span_ms: int) -> str:
    """Return a span of time, rounded, with its unit."""
    seconds = span_ms / _SECOND_MS
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.1f} min"
    return f"{seconds / _HOUR_S:.1f} h" if seconds < _DAY_S else f"{seconds / _DAY_S:.1f} days"


def lag_text(lag_bytes: int, lag_ms: int) -> str:
    """Return how far a copy lags."""
    return (
        f"{bytes_text(lag_bytes)} and {span_text(lag_ms)} behind" if lag_bytes else "nothing behind"
    )


def copy_text(copy: PeerStatus) -> str:
    """Return one copy of a master."""
    sync = "in sync" if copy.in_sync else "not in sync"
    failed = f"; last error: {copy.last_error}" if copy.last_error else ""
    lag = lag_text(copy.lag_bytes, copy.lag_ms)
    return f"{copy.name} ({copy.kind}) at {copy.received_offset:,}, {lag}, {sync}{failed}"


def status_line(status: ReplicaStatus, now_ms: int, *, has_list: bool = False) -> str:
    """Return a status in one line; with `has_list` the copies follow it, and are only counted in it."""
    failed = f"; last error: {status.last_error}" if status.last_error else ""
    ends = f"log end {status.end_offset:,}, on disk {status.flushed_offset:,}, epoch {status.epoch}"
    if status.role == "master":
        copies = "; ".join(map(copy_text, status.copies)) or "no copy is connected"
        if has_list and status.copies:
            in_sync = sum(copy.in_sync for copy in status.copies)
            copies = f"copies: {len(status.copies)}, {in_sync} in sync"
        where = f" at {status.address}" if status.address else ""
        return f"master{where}, {status.state}, {ends}; {copies}{failed}"
    kind = f" ({status.kind})" if status.kind else ""
    heard = (
        f"heard {span_text(now_ms - status.contact_ms)} ago" if status.contact_ms else "never heard"
    )
    lag = lag_text(status.lag_bytes, status.lag_ms)
    return f"follows {status.peer}{kind}, {status.state}, {lag}, {heard}, {ends}{failed}"
