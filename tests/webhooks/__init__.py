"""Tests of notifications: who is told of a run's end, how, and that nobody is told twice in other words."""
