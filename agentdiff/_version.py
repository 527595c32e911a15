"""The version of this package. Imported by whoever asks for it, as the look-up takes its time."""

from importlib import metadata

try:
    __version__ = metadata.version("agentdiff")
except metadata.PackageNotFoundError:
    __version__ = "0+unknown"  # a checkout that is not installed
