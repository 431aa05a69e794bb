"""Tests of hook.audit."""
