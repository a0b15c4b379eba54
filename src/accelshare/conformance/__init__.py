"""Suites that anybody who adds a part runs against it: what the interface promises, put as checks."""
