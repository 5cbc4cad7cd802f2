"""Answers the tool calls of agents.

Start it with: uvicorn backend:app --port 9000 --env-file .env
"""

import os

from dragoman.kit import SqliteCallStore, Tools
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
# The store keeps the answer of each call, so that a repeated call runs only once, even after a restart.
tools = Tools(secret=os.environ["CARDS_SECRET"], store=SqliteCallStore("calls.db"))


class AskForCards(BaseModel):
    """The arguments of the tool; those with a default are optional."""

    targetPlayer: str | None = None
    rank: str


# If you change a tool's name, docstring or arguments, regenerate `tools` of gateway.yaml:
# dragoman tools --from backend:tools
@tools.tool("ask_for_cards")
async def ask_for_cards(wanted: AskForCards) -> str:
    """Ask another player for all cards of a rank."""
    return f"Go fish! Nobody has a {wanted.rank}."


app.include_router(tools.router)
