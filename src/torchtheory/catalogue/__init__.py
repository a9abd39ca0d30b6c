"""Every result of the sources, one TOML file per source, and the errata: data, no code."""
