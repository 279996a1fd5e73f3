"""Tests of moving bytes."""

import pytest

# In a module that holds no tests of its own, pytest explains failed assertions only if told so.
pytest.register_assert_rewrite("tests.io.engine_suite", "tests.io.transfers")
