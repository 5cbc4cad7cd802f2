"""What followers see: feeds of sessions and of questions to people."""
