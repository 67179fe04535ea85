"""Payoff of tree policies: the tokens that their trees share, and reasons why they share none."""
