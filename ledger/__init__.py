"""turnledger's library: turn → event → log → fold → view → query; audit replays on the side."""
