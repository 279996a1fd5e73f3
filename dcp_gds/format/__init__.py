"""Bytes on disk: no I/O and no devices here."""
