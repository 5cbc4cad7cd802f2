"""The JSON Schema that editors use says what the loader accepts."""

import json
from collections.abc import Mapping

import jsonschema_rs
import pytest
import yaml

from gateway.adapter.port import Adapter
from gateway.settings.schema import build_schema, find
from tests.unit.settings.test_load import GOOD


def _accepts(adapters: Mapping[str, Adapter], text: str) -> bool:
    return jsonschema_rs.validator_for(build_schema(adapters)).is_valid(yaml.safe_load(text))


def test_what_loads_is_valid(adapters: Mapping[str, Adapter]) -> None:
    assert _accepts(adapters, GOOD)


@pytest.mark.parametrize(
    "text",
    [
        "executors: {c: {type: webhook, url: 'http://c', timeout: '${T:-20s}', attempts: '${N}', idempotent: '${B}'}}",
        "executors: {c: {type: webhook, url: '${URL}', secret: 'file:/run/secrets/c', max_response: 2MiB}}",
        "logging: {level: '${LEVEL:-info}'}",
        "routes: [{copy_to: a}, {copy_to: [a, b]}]",
    ],
)
def test_expansions_are_valid_where_the_model_wants_something_else(adapters: Mapping[str, Adapter], text: str) -> None:
    assert _accepts(adapters, text)


@pytest.mark.parametrize(
    "text",
    [
        "publc_url: x",
        "executors: {c: {type: webhook, url: 'http://c', tiemout: 1s}}",
        "executors: {c: {type: webhook, url: 'http://c', timeout: 20 parsecs}}",
        "executors: {c: {type: webhook, url: nowhere}}",
        "executors: {a b: {type: static}}",
        "runtimes: {r: {adapter: dove, url: x, api_key: y}}",
        "runtimes: {r: {adapter: pigeon, url: x}}",
        "runtimes: {r: {adapter: pigeon, url: x, api_key: y, color: red}}",
        "retention: {max_bytes: plenty}",
        "unrouted: maybe",
        "logging: {level: loud}",
    ],
)
def test_what_is_refused_is_not_valid(adapters: Mapping[str, Adapter], text: str) -> None:
    assert not _accepts(adapters, text)


def test_equal_adapters_give_equal_bytes(adapters: Mapping[str, Adapter]) -> None:
    assert json.dumps(build_schema(adapters)) == json.dumps(build_schema(dict(adapters)))


def test_every_setting_has_a_description(adapters: Mapping[str, Adapter]) -> None:
    schema = build_schema(adapters)
    definitions: dict[str, dict[str, dict[str, dict[str, str]]]] = schema["$defs"]
    everything = {"": schema["properties"]} | {name: one.get("properties", {}) for name, one in definitions.items()}
    assert [
        f"{name}.{key}" for name, keys in everything.items() for key, one in keys.items() if "description" not in one
    ] == []


def test_defaults_are_written_as_the_yaml_would(adapters: Mapping[str, Adapter]) -> None:
    definitions = build_schema(adapters)["$defs"]
    assert definitions["WebhookSpec"]["properties"]["timeout"]["default"] == "20s"
    assert definitions["Retention"]["properties"]["closed_age"]["default"] == "7d"
    assert definitions["Retention"]["properties"]["max_bytes"]["default"] == "2GiB"
    assert definitions["ApiKey"]["properties"]["scopes"]["default"] == ["answer", "drive", "operate", "read"]


def test_a_place_is_found_through_the_variant_that_the_values_choose(adapters: Mapping[str, Adapter]) -> None:
    values = {"executors": {"c": {"type": "static"}}, "runtimes": {"r": {"adapter": "pigeon"}}}
    schema = build_schema(adapters)
    (static,) = find(schema, ("executors", "c"), values)
    assert "result" in static["properties"]
    assert find(schema, ("executors", "c", "timeout"), values) == []
    assert find(schema, ("runtimes", "r", "loft"), values)[0]["description"] == "Attach to this loft."
