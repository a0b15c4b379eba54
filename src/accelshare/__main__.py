"""`python -m accelshare`, the same as the command."""

from accelshare.cli.main import run

run()
