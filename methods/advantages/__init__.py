"""Estimators: closed groups of trees in, advantages out. Pure; one file of one idea."""
