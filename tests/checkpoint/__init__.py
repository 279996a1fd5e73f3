"""Tests of saving and loading through DCP."""
