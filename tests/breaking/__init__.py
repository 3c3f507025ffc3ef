"""What a hostile tester did to Outlive, and what it must withstand since."""
