"""What leaves for backends besides calls, and what is looked after from time to time."""
