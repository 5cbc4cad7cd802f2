"""The decisions: pure, synchronous functions that turn inputs into a Step and effects."""
