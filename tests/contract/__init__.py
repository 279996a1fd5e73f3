"""Tests of what dcp_gds relies on in other packages."""
