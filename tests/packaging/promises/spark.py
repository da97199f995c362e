"""`pip install 'penstock[spark]'`: a local session with a Java of its own writes a store and reads it, batch and stream."""

from pathlib import Path

import penstock
from penstock_spark import local_session

spark = local_session(
    "promises", "1", {"spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false"}
)
try:
    with penstock.open("data", environ={}) as store:
        store.put_many(
            [penstock.Message("orders", b"%d" % number, queue=0) for number in range(10)]
        )
    orders = (
        spark.read.format("penstock")
        .option("subscribe", "orders")
        .load(str(Path("data").absolute()))
    )
    assert sorted(row.value for row in orders.select("value").collect()) == [
        b"%d" % number for number in range(10)
    ]
    paid = orders.select("value").limit(3)
    paid.write.format("penstock").option("topic", "paid").mode("append").save(
        str(Path("out").absolute())
    )
finally:
    spark.stop()
with penstock.open("out", read_only=True, environ={}) as store:
    assert sum(store.max_offset("paid", queue) for queue in store.topics()["paid"]) == 3
