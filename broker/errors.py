"""What can go wrong with a development broker."""


class BrokerError(Exception):
    """A broker could not be found, fetched or started, or it stopped by itself; the message says what to do."""
