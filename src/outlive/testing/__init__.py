"""What a test of a service built on Outlive needs: real servers that a test may kill, freeze and restart."""
