"""Removes secrets from texts of links."""

from functools import lru_cache

from dragoman.hidden import Hidden


class Mask(Hidden):
    """The mask of a link's errors and logs."""

    def __call__(self, text: object) -> str:
        """Return the text without its secrets."""
        return self.mask(str(text))


@lru_cache(maxsize=256)
def mask_of(secrets: tuple[str, ...]) -> Mask:
    """Make the mask of some secrets; all links of a runtime share one."""
    return Mask(secrets)
