"""The ledger over HTTP: the service, its authentication and its metrics."""
