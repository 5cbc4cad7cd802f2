"""The rules of OpenHands' Socket.IO protocol (V0, as 0.62 speaks it), `OH1` to `OH70`."""

from tests.rules.rule import not_ours, rule

VERSIONS = "OpenHands rules, 0 Versions"
TRANSPORT = "OpenHands rules, 1 Transport and handshake"
REPLAY = "OpenHands rules, 2 Replay"
EVENTS = "OpenHands rules, 3.1 Events"
OTHERS = "OpenHands rules, 3.2 What is no event"
ACTIONS = "OpenHands rules, 3.3 Actions"
OBSERVATIONS = "OpenHands rules, 3.4 Observations"
FLOWS = "OpenHands rules, 4 Flows"
CLIENT = "OpenHands rules, 5 Client actions"
REST = "OpenHands rules, 6 REST"
V1 = "OpenHands rules, 7 V1"

FACT = "a fact about OpenHands' releases, told in the adapter's README"
SERVER = "binds the OpenHands server"
OTHER_PROTOCOL = "V1 is another protocol (plain WebSocket, other events), which this adapter does not speak"

OPENHANDS = {
    "OH1": not_ours(
        VERSIONS, "I", "Servers from 0.17 to 1.6 speak this protocol; 0.62 stands for its last form.", FACT
    ),
    "OH2": rule(
        VERSIONS,
        "R",
        "codec",
        "Actions are read under both names; which one we send is an option, the newer by default.",
    ),
    "OH3": rule(VERSIONS, "R", "connector", "What is stored between the replay and the join of the room is fetched."),
    "OH4": not_ours(VERSIONS, "I", "Some releases exist only as source packages for Python 3.12 and 3.13.", FACT),
    "OH5": rule(
        TRANSPORT, "R", "connector", "We connect by websocket on the root namespace; the endpoint's path is an option."
    ),
    "OH6": rule(
        TRANSPORT, "R", "connector", "Conversation, place, providers and key travel in the query string of the URL."
    ),
    "OH7": rule(TRANSPORT, "R", "connector", "Events that come before the CONNECT packet are taken in their order."),
    "OH8": rule(
        TRANSPORT,
        "R",
        "connector",
        "Each action asks for an acknowledgement; without one it does not count as delivered.",
    ),
    "OH9": rule(TRANSPORT, "R", "connector", "No empty or null value is ever written into the query."),
    "OH10": rule(
        TRANSPORT,
        "R",
        "connector",
        "A refusal is told by the `msg_id` under its data, even after a replay was delivered.",
    ),
    "OH11": rule(TRANSPORT, "R", "connector", "A refusal stands although the server also hangs up after it."),
    "OH12": rule(
        TRANSPORT, "R", "connector", "A conversation id that could reach outside the server's folder is never sent."
    ),
    "OH13": rule(
        TRANSPORT, "R", "connector", "The session API key goes into the query for the socket and a header for REST."
    ),
    "OH14": rule(REPLAY, "R", "connector", "A link asks for what follows an id; that nothing comes is no error."),
    "OH15": rule(
        REPLAY, "R", "connector", "A replay leaves out null, recall and states gone by, and ends with the last state."
    ),
    "OH16": rule(REPLAY, "R", "codec", "A source that live and replay tell differently makes no different event."),
    "OH17": rule(REPLAY, "R", "connector", "An event that replay and live both bring is handed on once."),
    "OH18": rule(
        REPLAY,
        "R",
        "connector",
        "No event is dropped for its place in the order; a link resumes fifty behind the highest id.",
    ),
    "OH19": rule(REPLAY, "R", "codec", "An event is known by its id together with its time."),
    "OH20": rule(REPLAY, "R", "connector", "Each connect carries the id that is current then."),
    "OH21": rule(
        REPLAY,
        "R",
        "connector",
        "A disconnect by the server ends the link with a reason; what it has stopped is joined when there is work.",
    ),
    "OH22": rule(EVENTS, "R", "codec", "Sources are agent, user and environment; any other is told as narrowed."),
    "OH23": rule(EVENTS, "R", "codec", "Whether `timeout` is there means nothing."),
    "OH24": rule(
        EVENTS,
        "R",
        "codec",
        "An observation is tied to its action by `cause`; an error without one is a fault of its own.",
    ),
    "OH25": rule(
        EVENTS,
        "R",
        "codec",
        "Of `tool_call_metadata` only the tool call's id is kept, as the correlation of both events.",
    ),
    "OH26": rule(EVENTS, "R", "codec", "`llm_metrics` is left out without a loss."),
    "OH27": rule(
        EVENTS, "R", "codec", "Each action of one model answer is a call of its own, with or without a thought."
    ),
    "OH28": rule(
        OTHERS, "R", "codec", "A status update of type info is news of a state; one of type error is a fault."
    ),
    "OH29": rule(OTHERS, "R", "codec", "A status update with a conversation title gives the session its title."),
    "OH30": rule(OTHERS, "R", "codec", "A session that could not be made is a fault."),
    "OH31": rule(OTHERS, "R", "codec", "What is no event has no place to resume at and is never taken for a state."),
    "OH32": rule(
        OTHERS, "R", "codec", "An agent's message is read from its content, or its thought where it has none."
    ),
    "OH33": rule(
        ACTIONS, "R", "codec", "Only run and run_ipython say that they wait; risks are -1 to 2 and checked in orders."
    ),
    "OH34": rule(
        ACTIONS, "R", "codec", "The system prompt is kept whole and is no message; MCP tools are called by name."
    ),
    "OH35": rule(ACTIONS, "R", "codec", "Names of older servers are read or passed over, not refused."),
    "OH36": rule(
        OBSERVATIONS,
        "R",
        "codec",
        "An action failed by success false, an exit code, ERROR at the start, isError or an error.",
    ),
    "OH37": rule(OBSERVATIONS, "R", "codec", "An MCP result is JSON inside a text; its isError decides the outcome."),
    "OH38": rule(
        OBSERVATIONS,
        "R",
        "codec",
        "Unknown fields are listed as dropped; where action and observation meet, the action wins.",
    ),
    "OH39": rule(OBSERVATIONS, "R", "codec", "Truncated content and hidden secrets are passed on as they are."),
    "OH40": rule(
        FLOWS,
        "R",
        "codec",
        "The opening of a conversation is read state by state; work for an agent that loads waits until it listens.",
    ),
    "OH41": rule(FLOWS, "R", "codec", "A user's message may be our echo; recall and null are the runtime's own books."),
    "OH42": rule(FLOWS, "R", "codec", "A plain answer and the final thought of finish are messages of the agent."),
    "OH43": not_ours(FLOWS, "R", "A message after the end of a run starts it again.", SERVER),
    "OH44": rule(
        FLOWS,
        "R",
        "core",
        "An approval is derived from state and action in either order, given by a state, and the action comes again.",
    ),
    "OH45": rule(FLOWS, "R", "codec", "Pause and resume are orders; an observation during a pause is an observation."),
    "OH46": rule(FLOWS, "R", "core", "A stopped action ends as canceled, and may end a second time."),
    "OH47": rule(FLOWS, "R", "codec", "An observation finds its action however late it comes."),
    "OH48": rule(FLOWS, "R", "core", "Between a delegate's action and its observation no state ends the turn."),
    "OH49": rule(FLOWS, "R", "codec", "An error state carries its reason; rate_limited is running with that reason."),
    "OH50": rule(FLOWS, "R", "codec", "An unknown tool shows as an error without a cause: a fault, not a call."),
    "OH51": rule(FLOWS, "R", "codec", "A condensation is kept whole; no observation is expected of it."),
    "OH52": rule(
        CLIENT, "R", "codec", "What the server overwrites in an action is never written and not missed when read."
    ),
    "OH53": rule(CLIENT, "R", "codec", "Actions of clients are orders; observations are never injected by us."),
    "OH54": rule(CLIENT, "R", "codec", "No order may wait for ever or set a state that has a kind of its own."),
    "OH55": rule(CLIENT, "R", "codec", "`write` is never ordered, under whatever name; a message's content is text."),
    "OH56": rule(
        CLIENT, "R", "codec", "An order with an unknown name, missing, extra or wrong arguments is refused here."
    ),
    "OH57": rule(CLIENT, "R", "codec", "Messages, stops and approvals are written as the frontend writes them."),
    "OH58": rule(
        CLIENT,
        "R",
        "connector",
        "Events of over 4 MiB are taken; messages of over 4 MiB are refused before they are sent.",
    ),
    "OH59": not_ours(REST, "R", "Model, key and confirmation mode are stored in the settings.", SERVER),
    "OH60": rule(
        REST,
        "R",
        "connector",
        "A conversation is created with the configured fields only; what settings lack is told by id.",
    ),
    "OH61": rule(
        REST,
        "R",
        "connector",
        "How a conversation stands is asked before it is joined, and whether its agent listens; null is one unknown.",
    ),
    "OH62": rule(REST, "R", "config", "Another host or path of the socket, or of REST, is an option."),
    "OH63": rule(
        REST, "R", "connector", "Gaps are filled from the unfiltered store, without what a replay leaves out."
    ),
    "OH64": rule(REST, "R", "connector", "A link asks the store a bounded number of times; 429 is a lost link."),
    "OH65": rule(
        REST, "R", "connector", "Being evicted by too many conversations is told, and nobody is evicted in return."
    ),
    "OH66": not_ours(V1, "R", "V1 speaks over a plain WebSocket and resumes by time.", OTHER_PROTOCOL),
    "OH67": not_ours(V1, "R", "V1 takes messages on the socket and everything else by REST.", OTHER_PROTOCOL),
    "OH68": not_ours(V1, "R", "V1 names events by `kind` and a UUID.", OTHER_PROTOCOL),
    "OH69": not_ours(V1, "R", "V1 has no status updates and no agent_state_changed.", OTHER_PROTOCOL),
    "OH70": not_ours(V1, "R", "V1's tool names differ by version.", OTHER_PROTOCOL),
}
