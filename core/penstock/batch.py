"""`DispatchBatch`, under the name that plugins of version 0.1 import it by; see `penstock.contracts`."""

from penstock.contracts.dispatch_batch import DispatchBatch

__all__ = ["DispatchBatch"]
