"""The rules of Herm, `H1` to `H61`, and what its documents leave open, `H-a` to `H-jj`, with the reading we chose.

Of the open points only the client's side is here: the gateway is no server of this protocol.
"""

from tests.rules.rule import rule

REF = "Herm, Events Reference"

HERM = {
    "H1": rule(f"{REF}: top", "R", "connector", "What a client says is posted to the session's events."),
    "H2": rule(f"{REF}: top", "R", "connector", "The stored events are listed at the session's events."),
    "H3": rule(f"{REF}: top", "R", "connector", "News are streamed at the session's events/stream."),
    "H4": rule(f"{REF}: User events", "R", "codec", "We post user.* events and nothing else."),
    "H5": rule(f"{REF}: Event envelope", "R", "codec", "Listed and streamed events are read by the same wrapper."),
    "H6": rule(
        f"{REF}: Event envelope", "R", "codec", "The envelope's id tells repeats apart and is never an answer's id."
    ),
    "H7": rule(f"{REF}: Event envelope", "R", "codec", "The type stands in the envelope and in its payload."),
    "H8": rule(f"{REF}: Event envelope", "R", "connector", "A link reads and writes one session, named in its paths."),
    "H9": rule(f"{REF}: Event envelope", "R", "codec", "The sequence orders a session's events; gaps prove nothing."),
    "H10": rule(f"{REF}: Event envelope", "R", "codec", "A status other than complete is listed as lost."),
    "H11": rule(f"{REF}: Event envelope", "R", "codec", "A payload that is no object is malformed."),
    "H12": rule(f"{REF}: Event envelope", "R", "codec", "processedAt may be absent."),
    "H13": rule(f"{REF}: Event envelope", "R", "codec", "createdAt is kept as it came and orders nothing."),
    "H14": rule(
        f"{REF}: Text content block", "R", "codec", "A text block has a type and a text, and is the only kind."
    ),
    "H15": rule(f"{REF}: Text content block", "R", "codec", "We write 1 to 100 blocks and refuse what needs more."),
    "H16": rule(f"{REF}: Text content block", "R", "codec", "We write at most 20,000 characters into a block."),
    "H17": rule(f"{REF}: Stop reason", "R", "codec", "end_turn, error and requires_action each have their state."),
    "H18": rule(f"{REF}: Stop reason", "R", "core", "Every id that an idle session waits for gets its answer."),
    "H19": rule(f"{REF}: user.message", "R", "codec", "A user's message is a list of text blocks."),
    "H20": rule(f"{REF}: user.message", "R", "connector", "No request carries more than one message."),
    "H21": rule(f"{REF}: user.message", "R", "connector", "A message refused because a turn runs is busy, not lost."),
    "H22": rule(f"{REF}: user.steer", "R", "codec", "A steer is one text."),
    "H23": rule(f"{REF}: user.interrupt", "R", "codec", "An interrupt may say why."),
    "H24": rule(f"{REF}: user.tool_confirmation", "R", "codec", "A confirmation names the id of the tool use."),
    "H25": rule(f"{REF}: user.tool_confirmation", "R", "codec", "A confirmation allows or denies, nothing else."),
    "H26": rule(f"{REF}: user.tool_confirmation", "R", "codec", "A scope is once, session, always or absent."),
    "H27": rule(
        f"{REF}: user.tool_confirmation", "R", "codec", "An approval is asked for built-in and MCP calls only."
    ),
    "H28": rule(f"{REF}: user.custom_tool_result", "R", "codec", "A result names the id of the custom tool use."),
    "H29": rule(f"{REF}: user.custom_tool_result", "R", "codec", "A result has at least one text block."),
    "H30": rule(f"{REF}: user.custom_tool_result", "R", "codec", "Whatever is no success is written is_error true."),
    "H31": rule(f"{REF}: user.clarify_result", "R", "codec", "An answer names the id of its question."),
    "H32": rule(f"{REF}: user.clarify_result", "R", "codec", "An empty answer is sent as an empty answer."),
    "H33": rule(f"{REF}: user.sudo_result", "R", "codec", "A password is on the wire and nowhere else."),
    "H34": rule(f"{REF}: user.secret_result", "R", "codec", "A secret value is on the wire and nowhere else."),
    "H35": rule(f"{REF}: session.status_running", "R", "codec", "status_running means that the turn runs."),
    "H36": rule(f"{REF}: session.status_idle", "R", "codec", "status_idle says by its reason why nothing runs."),
    "H37": rule(f"{REF}: session.title_updated", "R", "codec", "A title has its kind."),
    "H38": rule(f"{REF}: session.title_updated", "R", "codec", "A title is live and never stored."),
    "H39": rule(f"{REF}: Agent events", "R", "codec", "agent.* comes from the runtime."),
    "H40": rule(f"{REF}: agent.message", "R", "codec", "delta true is a live piece, delta false a message."),
    "H41": rule(f"{REF}: agent.thinking", "R", "codec", "delta true is a live thought, delta false a recorded one."),
    "H42": rule(f"{REF}: agent.message", "I", "codec", "Pieces are never stored; the whole is the record."),
    "H43": rule(f"{REF}: agent.tool_use", "R", "codec", "A tool use is a call that the runtime carries out itself."),
    "H44": rule(f"{REF}: agent.tool_use", "R", "codec", "A preview is kept where there is one."),
    "H45": rule(f"{REF}: agent.tool_use", "R", "codec", "requires_action true, and only that, asks for an approval."),
    "H46": rule(f"{REF}: agent.tool_result", "R", "codec", "A tool result ends the call it names."),
    "H47": rule(f"{REF}: agent.mcp_tool_use", "R", "codec", "An MCP tool use is read like a tool use."),
    "H48": rule(f"{REF}: agent.mcp_tool_result", "R", "codec", "An MCP tool result is read like a tool result."),
    "H49": rule(f"{REF}: agent.custom_tool_use", "R", "codec", "A custom tool use is a call for the host."),
    "H50": rule(f"{REF}: agent.custom_tool_use", "R", "core", "Every custom tool use with an id gets one answer."),
    "H51": rule(f"{REF}: agent.clarify_request", "R", "codec", "A question has choices, or none for a free answer."),
    "H52": rule(f"{REF}: agent.thread_message_sent", "R", "codec", "Work handed over has its kind and its thread."),
    "H53": rule(
        f"{REF}: agent.thread_message_received", "R", "codec", "A thread's result has its kind and its thread."
    ),
    "H54": rule(f"{REF}: Custom tool handling", "R", "codec", "Only custom tools run at the host."),
    "H55": rule(f"{REF}: Custom tool handling", "R", "connector", "Opening a session says that it declares no tools."),
    "H56": rule(
        f"{REF}: Custom tool handling", "R", "core", "A call is acted on when it comes, before the idle behind it."
    ),
    "H57": rule(f"{REF}: Custom tool handling", "R", "codec", "event_ids name calls and questions, not envelopes."),
    "H58": rule(f"{REF}: Custom tool handling", "R", "codec", "An answer's tool_use_id is the id of its call."),
    "H59": rule(
        f"{REF}: Custom tool handling", "R", "connector", "After an answer the same link hears the turn go on."
    ),
    "H60": rule(f"{REF}: Custom tool handling", "R", "codec", "A custom tool use never asks for an approval."),
    "H61": rule(
        f"{REF}: Custom tool handling", "R", "core", "Arguments are checked and calls keyed before the backend acts."
    ),
}

OPEN = {
    "H-a": rule(
        f"{REF}: User events", "A", "connector", "An event is posted as {events: [event]}; other forms are options."
    ),
    "H-b": rule(f"{REF}: User events", "A", "connector", "Any 2xx with any body is a delivery."),
    "H-c": rule(f"{REF}: User events", "A", "connector", "Each request carries one event, so that each has an answer."),
    "H-d": rule(
        f"{REF}: user.message", "A", "connector", "409, 423, and 400 or 422 with a busy code mean: a turn runs."
    ),
    "H-e": rule(f"{REF}: user.message", "A", "core", "A session that waits for an action counts as running."),
    "H-f": rule(
        f"{REF}: top", "A", "connector", "Every page is read, in any family's form; a repeated cursor ends it."
    ),
    "H-g": rule(f"{REF}: top", "A", "connector", "The stream may replay or not: list and stream are joined by ids."),
    "H-h": rule(f"{REF}: top", "A", "connector", "Only the data of a streamed event counts, however it is written."),
    "H-i": rule(f"{REF}: Event envelope", "A", "connector", "The first gap after a connect leads to one more list."),
    "H-j": rule(f"{REF}: Event envelope", "A", "connector", "What is only live never moves the cursor."),
    "H-k": rule(f"{REF}: agent.message", "A", "codec", "Pieces carry no id of the whole that they belong to."),
    "H-l": rule(f"{REF}: agent.message", "A", "connector", "A piece numbered below the last whole is dropped."),
    "H-m": rule(f"{REF}: agent.message", "A", "codec", "Each whole of a turn is a message of its own."),
    "H-n": rule(f"{REF}: agent.message", "A", "core", "Pieces without a whole are a message marked incomplete."),
    "H-o": rule(f"{REF}: Stop reason", "A", "codec", "A session may wait for several ids of several kinds."),
    "H-p": rule(f"{REF}: Stop reason", "A", "connector", "Each answer is posted when it is there, in any order."),
    "H-q": rule(f"{REF}: Stop reason", "A", "core", "An id of an unknown kind is shown and never answered by a guess."),
    "H-r": rule(f"{REF}: agent.clarify_request", "A", "codec", "A question is one whether or not an idle names it."),
    "H-s": rule(
        f"{REF}: user.sudo_result", "A", "codec", "agent.sudo_request and agent.secret_request ask for secrets."
    ),
    "H-t": rule(f"{REF}: User events", "A", "connector", "404, 409 or 410 on an answer means: settled already."),
    "H-u": rule(
        f"{REF}: User events", "A", "connector", "After a post of unknown fate the next link lists before it sends."
    ),
    "H-v": rule(f"{REF}: user.tool_confirmation", "A", "codec", "A denial keeps its scope; the page restricts none."),
    "H-w": rule(
        f"{REF}: user.tool_confirmation", "A", "codec", "A scope that nobody gave is not written, which is once."
    ),
    "H-x": rule(
        f"{REF}: user.tool_confirmation", "A", "core", "Confirmations leave in the order they were asked, singly."
    ),
    "H-y": rule(f"{REF}: user.steer", "A", "connector", "A steer or interrupt that finds no turn is moot."),
    "H-z": rule(f"{REF}: user.interrupt", "A", "codec", "After an interrupt a turn may end by end_turn or by error."),
    "H-aa": rule(
        f"{REF}: Text content block", "A", "codec", "Characters are UTF-16 units; texts are cut between characters."
    ),
    "H-bb": rule(
        f"{REF}: Text content block", "A", "codec", "An empty result is told in words, never without a block."
    ),
    "H-cc": rule(f"{REF}: Text content block", "A", "codec", "What is over the limits is still read."),
    "H-dd": rule(f"{REF}: agent.tool_result", "A", "codec", "A result failed if its status or its flag says so."),
    "H-ee": rule(
        f"{REF}: Event envelope", "A", "codec", "Unknown types are kept, unknown fields listed, neither is fatal."
    ),
    "H-ff": rule(
        f"{REF}: Event envelope", "A", "codec", "Where envelope and payload disagree on the type, the payload counts."
    ),
    "H-gg": rule(f"{REF}: session.title_updated", "A", "connector", "The stream stays open behind the end of a turn."),
    "H-hh": rule(f"{REF}: User events", "A", "connector", "An answer that came too late is moot."),
    "H-ii": rule(f"{REF}: agent.thread_message_sent", "A", "codec", "Thread messages need no pair and no turn."),
    "H-jj": rule(f"{REF}: top", "A", "connector", "A session that is gone is refused for good."),
}
