"""A small game of Go Fish: the state behind the sample backend."""

from datetime import UTC, datetime

BOOK = 4
"""Cards of one rank that make a book."""
CHAT_LINES = 200
MESSAGE_LIMIT = 500
AGENT = "Finn"


class Refusal(Exception):
    """An illegal move; the text is for the agent and lists legal moves."""


class Game:
    """One table: Finn, played by the agent, against Victoria and Alice. The deck has a fixed order."""

    def __init__(self) -> None:
        self.hands: dict[str, list[str]] = {}
        self.deck: list[str] = []
        self.books: dict[str, list[str]] = {}
        self.chat: list[str] = []
        self.round = 0
        self.deal()

    def deal(self) -> None:
        """Start a round."""
        self.round += 1
        self.hands = {AGENT: ["7", "7", "K", "3"], "Victoria": ["7", "7", "Q", "5"], "Alice": ["K", "3", "9", "5"]}
        self.deck = ["9", "Q", "K", "5", "3", "9", "K", "Q", "5", "3", "9", "Q"]
        self.books = {name: [] for name in self.hands}

    def ask(self, target: str, rank: str) -> str:
        """Let Finn ask another player for cards; return the result as a text.

        Raises:
            Refusal: the player does not exist, or Finn does not hold the rank.
        """
        others = [name for name in self.hands if name != AGENT]
        if target not in others:
            raise Refusal(f"Player {target!r} not found. You can ask: {', '.join(others)}.")
        own, other = self.hands[AGENT], self.hands[target]
        if rank not in own:
            held = ", ".join(sorted(set(own)))
            raise Refusal(f"You don't have any {rank}s. You can only ask for ranks you have: {held}.")
        given = other.count(rank)
        if given:
            other[:] = [card for card in other if card != rank]
            own.extend([rank] * given)
            happened = f"{target} gave you {given} card(s) of rank {rank}. It is your turn again."
        else:
            for hand in self.hands.values():
                hand.extend(self.deck[:1])
                del self.deck[:1]
            happened = f"Go Fish! {target} has no {rank}s. Everybody drew a card, it is your turn again."
        return happened + self._lay_books()

    def post(self, author: str, text: str) -> None:
        """Add a line to the chat of the table.

        Raises:
            Refusal: the line is too long.
        """
        if len(text) > MESSAGE_LIMIT:
            raise Refusal(f"A message has at most {MESSAGE_LIMIT} characters, this one has {len(text)}.")
        self.chat.append(f"[{datetime.now(UTC):%H:%M}] {author}: {text}")
        del self.chat[:-CHAT_LINES]

    def view(self) -> dict[str, object]:
        """Return the complete state as Finn sees it, which HUMA requires in each update."""
        return {
            "round": self.round,
            "yourHand": sorted(self.hands[AGENT]),
            "players": [
                {"name": name, "cards": len(hand), "books": self.books[name]} for name, hand in self.hands.items()
            ],
            "cardsInDeck": len(self.deck),
            "conversationHistory": "\n".join(self.chat),
        }

    def _lay_books(self) -> str:
        own = self.hands[AGENT]
        complete = sorted(rank for rank in set(own) if own.count(rank) >= BOOK)
        for rank in complete:
            own[:] = [card for card in own if card != rank]
            self.books[AGENT].append(rank)
        if not own:
            self.deal()
        return "".join(f" You completed the book of {rank}s!" for rank in complete)
