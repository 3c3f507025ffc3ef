"""The checks that a history has to pass, by what they are about."""
