"""The decisions: pure and synchronous, from what happened to what is written and done about it."""
