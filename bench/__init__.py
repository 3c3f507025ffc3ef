"""Measures Outlive beside the handler that one would write without it; run by ``make bench``."""
