"""Who answers calls and who receives copies: webhook, static, destination, and what they share."""
