"""accelshare: many pods share few accelerator cards on Kubernetes."""

__version__ = "0.1.0"
