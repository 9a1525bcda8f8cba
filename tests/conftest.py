"""Shared by every tier."""
