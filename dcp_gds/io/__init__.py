"""Moving bytes between memory and files."""
