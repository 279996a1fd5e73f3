"""DCP's storage interfaces."""
