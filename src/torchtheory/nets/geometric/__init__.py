"""Sets and graphs: networks that respect the order of nothing, and graph spectra."""
