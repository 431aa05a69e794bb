"""Tests of hook.ops.audit."""
