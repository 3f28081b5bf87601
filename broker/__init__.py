"""A real Apache Kafka for development and tests; no part of the distribution."""
