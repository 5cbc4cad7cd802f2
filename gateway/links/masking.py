"""Keeps secrets out of texts and log lines, those of third-party libraries included."""

import logging
from functools import lru_cache

from gateway.hidden import Hidden


class Mask(Hidden):
    """The mask for what a link tells of its peer."""

    def __call__(self, text: object) -> str:
        """Return the text without its secrets."""
        return self.mask(str(text))


class _MaskingFilter(logging.Filter):
    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self._mask = mask

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            # A traceback would quote the URL of the failed request, and it is formatted after this filter.
            text += f" ({record.exc_info[0].__name__}: {record.exc_info[1]})"
            record.exc_info = None
        record.msg, record.args = self._mask(text)[:2_000], None
        return True


@lru_cache(maxsize=256)
def mask_of(secrets: tuple[str, ...]) -> Mask:
    """Make the mask of some secrets; all links of a runtime share one."""
    return Mask(secrets)


@lru_cache(maxsize=256)
def masked_logger(name: str, mask: Mask) -> logging.Logger:
    """Make a logger to hand to a library: its errors reach the root's handlers, without secrets.

    It stands outside the registry, so that no level or handler set elsewhere lets a secret through.
    """
    # Registered loggers can be reconfigured by name from anywhere; this one cannot.
    logger = logging.Logger(name, level=logging.ERROR)  # noqa: LOG001
    logger.parent = logging.getLogger()
    logger.addFilter(_MaskingFilter(mask))
    return logger
