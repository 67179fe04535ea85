"""Stored trees as text for terminals and as pictures. Pure: nothing is read or printed."""
