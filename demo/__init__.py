"""The demonstration behind ``make demo``: what leaving clients, killed and frozen workers leave behind."""
