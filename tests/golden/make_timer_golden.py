"""Makes the golden timer files: those of a broker of RocketMQ 5.3.3, closed and killed, with what its timer topic has.

Run from the project's root: ``python -m tests.golden.make_timer_golden``; needs a JDK and Maven.
"""

import json
import tarfile
import tempfile
import time
from pathlib import Path

from tests.interop.brokers import Broker, build_broker
from tests.interop.takeover import opened
from tests.interop.timers import (
    HOUR_MS,
    QUEUE,
    SETTINGS,
    TOPIC,
    delivered_by,
    timer,
    wait_until_saved,
)

from penstock_messaging.properties_text import TIMER_TOPIC

HERE = Path(__file__).parent
VERSION = "5.3.3"


def main() -> None:
    """Write one archive and one list of records for each ending."""
    for ending in ("clean", "killed"):
        with (
            tempfile.TemporaryDirectory() as home,
            Broker(build_broker(VERSION), VERSION) as broker,
        ):
            root = Path(home) / "store"
            broker.start(root, SETTINGS)
            broker.create(TOPIC, 2)
            send(broker, "first")
            delivered_by(broker, {f"first soon {n}" for n in range(4)})
            wait_until_saved(root, int(time.time() * 1000))
            if ending == "clean":
                broker.stop()
            else:
                # Some of this is not saved yet.
                send(broker, "second")
                broker.kill()
            name = f"timers-{VERSION}-{ending}"
            with tarfile.open(HERE / f"{name}.tar.gz", "w:gz") as archive:
                for path in ("timerwheel", "timerlog", "config/timercheck"):
                    archive.add(root / path, path)
            (HERE / f"{name}.json").write_text(json.dumps(records(root), separators=(",", ":")))


def send(broker: Broker, name: str) -> None:
    """Send messages for soon, for hours and for days, and cancel one."""
    now_ms = int(time.time() * 1000)
    broker.send(*(timer(f"{name} soon {n}", now_ms + 1500 + 200 * n) for n in range(4)))
    hours = [timer(f"{name} hour {n}", now_ms + HOUR_MS + n % 9 * 400) for n in range(40)]
    answers = broker.send(*hours, timer(f"{name} rolled", now_ms + 60 * HOUR_MS))
    key = f"{TOPIC}+{answers[3]['unique_key']}"
    broker.send(timer("x", now_ms + HOUR_MS + 1200, TIMER_DEL_UNIQKEY=key))


def records(root: Path) -> dict[str, object]:
    """Return the time, and of each record of the timer topic: log offset, size, TIMER_OUT_MS, whether it cancels, is delivered."""
    with opened(root, read_only=True) as store:
        done = {message.all_properties["UNIQ_KEY"] for message in store.scan(TOPIC, queue=QUEUE)}
        found = [
            (
                message.log_offset,
                len(message.record),
                int(message.all_properties["TIMER_OUT_MS"]),
                "TIMER_DEL_UNIQKEY" in message.all_properties,
                message.all_properties["UNIQ_KEY"] in done,
            )
            for message in store.scan(TIMER_TOPIC)
        ]
    return {"now_ms": int(time.time() * 1000), "records": found}


if __name__ == "__main__":
    main()
