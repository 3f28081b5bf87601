"""Programs that use the library as other projects would; no part of the distribution."""
