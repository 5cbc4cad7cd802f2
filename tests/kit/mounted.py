"""Applications that use the same tools in every way that decides whether a lifespan reaches them."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import Mount

from dragoman.kit import SqliteCallStore, Tools
from tests.kit.sender import RUNS, SECRET

tools = Tools(secret=SECRET, store=SqliteCallStore(os.environ[RUNS] + ".db"), at_once=0.05, drain=0.2)
entered: list[str] = []


class Rank(BaseModel):
    rank: str


@tools.tool("echo")
async def echo(arguments: Rank) -> str:
    """Return the rank."""
    return arguments.rank


@asynccontextmanager
async def _own(_app: object) -> AsyncGenerator[None]:
    entered.append("own")
    yield


@asynccontextmanager
async def _both(app: object) -> AsyncGenerator[None]:
    async with tools.lifespan(app):
        yield


def _with_router(app: FastAPI, *prefixes: str) -> FastAPI:
    for prefix in prefixes:
        app.include_router(tools.router, prefix=prefix)
    return app


def _mounting(app: FastAPI) -> FastAPI:
    app.mount("/x", _with_router(FastAPI(), ""))
    return app


plain = _with_router(FastAPI(), "")
twice = _with_router(FastAPI(), "/x", "/y")
own_lifespan = _with_router(FastAPI(lifespan=_own), "/x")
mounted = _mounting(FastAPI())
mounted_with_lifespan = _mounting(FastAPI(lifespan=tools.lifespan))
mounted_in_own_lifespan = _mounting(FastAPI(lifespan=_both))
both_ways = _with_router(_mounting(FastAPI(lifespan=tools.lifespan)), "/y")
starlette = Starlette(routes=[Mount("/x", app=_with_router(FastAPI(), ""))], lifespan=tools.lifespan)
starlette_without = Starlette(routes=[Mount("/x", app=_with_router(FastAPI(), ""))])
