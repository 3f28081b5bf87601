"""The command line `turnledger`: a client of a running service, or the opener of an embedded ledger."""
