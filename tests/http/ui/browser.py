"""A browser in front of the UI: it follows nothing, reads forms, and sends the headers that browsers add to one."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.cookiejar import CookieJar, DefaultCookiePolicy
from http.cookies import Morsel, SimpleCookie

import httpx

from tests.pace import PATIENCE

OWN = {"sec-fetch-site": "same-origin"}


@dataclass
class Browser:
    """One browser and the `Host` that it writes; requests go to the gateway at the client's address."""

    http: httpx.AsyncClient
    host: str
    cookie: str = ""
    """What it sends as `Cookie`."""

    async def open(self, path: str) -> httpx.Response:
        """Load a page."""
        return await self.http.get(path, headers=self._headers({"sec-fetch-site": "none"}))

    async def send(self, path: str, fields: Mapping[str, str], over: Mapping[str, str] = OWN) -> httpx.Response:
        """Send a form, with the headers that show its page."""
        return await self.http.post(path, data=dict(fields), headers=self._headers(over))

    async def sign_in(self, key: str, following: str = "") -> Morsel[str]:
        """Sign in, keep the cookie and return it."""
        answer = await self.send("/ui/sign-in", {"key": key, "next": following})
        assert (answer.status_code, answer.headers["location"]) == (303, following or "/ui"), answer.text
        kept = cookie_in(answer)
        self.cookie = f"{kept.key}={kept.value}"
        return kept

    async def is_signed_in(self) -> bool:
        """Look whether the form is skipped."""
        answer = await self.open("/ui/sign-in?next=/ui/inbox")
        if answer.status_code == 303:
            assert answer.headers["location"] == "/ui/inbox"
        return answer.status_code == 303

    def _headers(self, over: Mapping[str, str]) -> dict[str, str]:
        return {"host": self.host, **({"cookie": self.cookie} if self.cookie else {}), **over}


def cookie_in(answer: httpx.Response) -> Morsel[str]:
    """Return the only cookie that an answer sets."""
    [line] = answer.headers.get_list("set-cookie")
    [kept] = SimpleCookie(line).values()
    return kept


@dataclass
class _Forms(HTMLParser):
    """Reads the hidden fields of the forms of a page."""

    forms: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """By id, otherwise by position."""
    actions: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The forms of an action."""
    inside: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.inside = given.get("id", str(sum(map(len, self.actions.values()))))
            self.actions.setdefault(given.get("action", ""), []).append(self.inside)
        elif tag == "input" and given.get("type") == "hidden":
            fields = self.forms.setdefault(given.get("form", self.inside), {})
            fields[given["name"]] = given.get("value", "")


def forms_in(page: httpx.Response, action: str) -> list[dict[str, str]]:
    """Read the hidden fields of the forms of a page that are sent to a path."""
    read = _Forms()
    read.feed(page.text)
    return [read.forms.get(one, {}) for one in read.actions.get(action, ())]


@asynccontextmanager
async def browsing(url: str, host: str | None = None) -> AsyncGenerator[Browser]:
    """Open a browser on a running gateway."""
    none = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, cookies=none, verify=False) as http:  # noqa: S501
        yield Browser(http, httpx.URL(url).netloc.decode() if host is None else host)
