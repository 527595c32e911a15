"""Where a local model is: in the package, in a folder, or on the hub."""

from __future__ import annotations

from pathlib import Path

from agentdiff.errors import ConfigurationError

EMBEDDED = Path(__file__).parent.parent / "embedded" / "weights"


def find_checkpoint(source: str) -> Path:
    """The folder of a local checkpoint, or of a hub snapshot that is downloaded if need be.

    Raises:
        ConfigurationError: Neither a folder nor a hub id that can be had.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or source.startswith((".", "~")) or source.count("/") != 1:
        raise ConfigurationError(
            f"no checkpoint folder at `{source}`; give a folder or a hub id such as `owner/name`"
        )
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(huggingface_hub.snapshot_download(source, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigurationError(
            f"`{source}` is not a folder here and could not be downloaded as a hub id "
            f"({type(error).__name__})"
        ) from error
