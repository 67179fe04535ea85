"""Allowances of the operator to scorers of a recipe: limits, network and secrets."""
