"""The loopback upstream: a deterministic model server for the demo, the examples of the README, tests and benchmarks.

It speaks the Responses API with state of its own and stateless chat completions, and is as strict as the providers that
clients know: what they refuse is refused here. It has no model. What it answers is a function of what it was sent, so
that an answer shows the context behind it.
"""
