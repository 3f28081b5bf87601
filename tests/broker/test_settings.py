"""What a cluster is started with."""

from broker.settings import new_cluster_id


def test_cluster_id_never_looks_like_an_option() -> None:
    """One random ID in 64 would begin with a dash."""
    assert not any(new_cluster_id().startswith("-") for _ in range(2_000))
