"""What the URLs of the configuration may contain, part by part."""

import pytest

from gateway.errors import InvalidConfiguration
from tests.unit.settings.conftest import Load

ORIGIN = "must be scheme, host and port only"
BASE = "must have no credentials, query or fragment"
PAGE = "must be the origin of a web page"


@pytest.mark.parametrize("url", ["http://10.0.0.7:8080", "http://10.0.0.7:8080/", "https://a.example"])
def test_an_instance_has_an_origin_without_more(load_text: Load, url: str) -> None:
    assert str(load_text(f"instance: {{url: '{url}'}}").settings.instance.url).rstrip("/") == url.rstrip("/")


@pytest.mark.parametrize("more", ["u@h", "u:p@h", ":p@h", "h/path", "h/?a=b", "h/#part"])
def test_an_instance_s_url_with_more_is_refused(load_text: Load, more: str) -> None:
    with pytest.raises(InvalidConfiguration, match=ORIGIN):
        load_text(f"instance: {{url: 'http://{more}'}}")


@pytest.mark.parametrize("more", ["u@h", "u:p@h", ":p@h", "h/path?a=b", "h/#part"])
def test_an_endpoint_of_traces_has_a_path_only(load_text: Load, more: str) -> None:
    with pytest.raises(InvalidConfiguration, match=BASE):
        load_text(f"traces: {{endpoint: 'http://{more}'}}")
    traces = load_text("traces: {endpoint: 'http://h/path'}").settings.traces
    assert traces is not None
    assert str(traces.endpoint) == "http://h/path"


@pytest.mark.parametrize(
    ("written", "origin"),
    [
        ("https://app.example", "https://app.example"),
        ("https://app.example/", "https://app.example"),
        ("HTTPS://App.Example:443", "https://app.example"),
    ],
)
def test_a_page_s_origin_is_compared_as_browsers_write_it(load_text: Load, written: str, origin: str) -> None:
    assert load_text(f"api: {{origins: ['{written}']}}").settings.api.origins == (origin,)


@pytest.mark.parametrize("written", ["https://app.example/path", "https://u@app.example", "*", "app.example", "null"])
def test_anything_else_is_no_origin_of_a_page(load_text: Load, written: str) -> None:
    with pytest.raises(InvalidConfiguration, match=PAGE):
        load_text(f"api: {{origins: ['{written}']}}")
