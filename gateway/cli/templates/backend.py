"""Answers the tool calls of agents.

Start it with: uvicorn backend:app --port 9000 --env-file .env
"""

import os

from fastapi import FastAPI
from pydantic import BaseModel

from dragoman.kit import SqliteCallStore, Tools

app = FastAPI()
# The store keeps what each call was answered, so that a repeat runs nothing twice, also after a restart.
tools = Tools(secret=os.environ["CARDS_SECRET"], store=SqliteCallStore("calls.db"))


class AskForCards(BaseModel):
    """What agents say with the call; None is what they may leave out."""

    targetPlayer: str | None = None
    rank: str


# After a change of a tool's name, docstring or arguments: `dragoman tools --from backend:tools` writes them anew for
# gateway.yaml.
@tools.tool("ask_for_cards")
async def ask_for_cards(wanted: AskForCards) -> str:
    """Ask another player for all cards of a rank."""
    return f"Go fish! Nobody has a {wanted.rank}."


app.include_router(tools.router)
