"""What runs inside the service that is probed: a recorder that changes nothing and sees a lot.

The directory is copied under another name and put on the service's import path, so it depends on nothing
but the standard library and imports its own modules relatively. It decides nothing about outcomes.
"""
