"""Tests of dcp_gds, one package so that spawned rank processes can import them by name."""
