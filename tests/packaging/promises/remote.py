"""`pip install 'penstock[remote]'`: stores at a URL are opened for reading; s3fs is there for s3://."""

import fsspec
import s3fs

import penstock
from penstock_spark.stores import find_stores, open_store

with penstock.open("data", environ={}) as store:
    store.put("orders", b"two boxes of pears", queue=0)
memory = fsspec.filesystem("memory")
memory.put("data", "/bucket/data", queue=0, recursive=True)
(location,) = find_stores(["memory://bucket/data"]).stores
with open_store(location) as store:
    assert [each.body for each in store.scan("orders", queue=0)] == [b"two boxes of pears"]
assert fsspec.get_filesystem_class("s3") is s3fs.S3FileSystem
