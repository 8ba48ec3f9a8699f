"""See portable.py."""
