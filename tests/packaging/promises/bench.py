"""`pip install 'penstock[bench]'`: the engines that `make bench` compares with, and its plots."""

import lmdb
import rocksdict
from matplotlib.figure import Figure

import penstock

with lmdb.open("lmdb") as peer, peer.begin(write=True) as transaction:
    assert transaction.put(b"key", b"value")
other = rocksdict.Rdict("rocks")
other[b"key"] = b"value"
assert other[b"key"] == b"value"
other.close()
with penstock.open("data", environ={}) as store:
    store.put("orders", b"value", queue=0)
Figure().savefig("plot.svg")
