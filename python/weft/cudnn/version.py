"""The version of cuDNN whose behaviour this module follows. weft.backend_version() is Weft's own."""

from __future__ import annotations

from weft.errors import BadParameterError

FRONTEND = "1.32.0"
"""The release of cuDNN's Python frontend whose names are implemented."""

_DEFAULT = 92800
_BYTE_BOOLEANS = 92500  # since this version BOOLEAN is a byte per element; earlier it was a bit
_version = _DEFAULT


def backend_version() -> int:
    """The cuDNN version whose behaviour is followed: MAJOR * 10000 + MINOR * 100 + PATCHLEVEL."""
    return _version


def backend_version_string() -> str:
    """backend_version() as text, such as "9.28.0"."""
    return f"{_version // 10000}.{_version // 100 % 100}.{_version % 100}"


def set_backend_version(version: int | None = None) -> None:
    """Follows the behaviour of another cuDNN version in graphs created after the call; None: 9.28.0. This
    function is Weft's own; cuDNN does not have it.

    >>> import weft.cudnn as cudnn
    >>> cudnn.set_backend_version(91400)
    >>> cudnn.backend_version_string()
    '9.14.0'
    >>> cudnn.set_backend_version()
    >>> cudnn.backend_version()
    92800
    """
    global _version
    wanted = _DEFAULT if version is None else int(version)
    if not 90000 <= wanted < 100000:
        raise BadParameterError(
            f"backend version: {wanted} is not a version of cuDNN 9. Give MAJOR * 10000 + MINOR * 100 + "
            "PATCHLEVEL, such as 92800."
        )
    _version = wanted


def are_booleans_bytes() -> bool:
    """True if BOOLEAN has a byte per element."""
    return _version >= _BYTE_BOOLEANS
