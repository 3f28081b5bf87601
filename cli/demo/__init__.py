"""The demonstration: real traffic through two replicas, and each rule of the ledger shown once."""
