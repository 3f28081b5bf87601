"""The OpenAI-compatible gateway: a router that keeps all its state in the ledger."""
