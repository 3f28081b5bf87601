"""Work off the hot path: compacted tables, erasure and the watch over replicas."""
