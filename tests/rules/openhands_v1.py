"""The rules of OpenHands V1 (agent-server 1.23 to 1.58, app server 1.11), `OV1` to `OV93`."""

from tests.rules.rule import not_ours, rule

VERSIONS = "OpenHands V1 rules, 0 Versions"
AUTH = "OpenHands V1 rules, 1 Auth and errors"
SOCKETS = "OpenHands V1 rules, 2 The two sockets"
REST = "OpenHands V1 rules, 3 REST"
EVENTS = "OpenHands V1 rules, 4 Events"
SAYING = "OpenHands V1 rules, 5 Saying things"
CALLS = "OpenHands V1 rules, 5 Calls"
TOOLS = "OpenHands V1 rules, 6 Our tools: MCP"
ACP = "OpenHands V1 rules, 11 ACP agents"
NEWEST = "OpenHands V1 rules, 12 Read and measured on 1.58.2"
APP = "OpenHands V1 rules, 13 The app server"

FACT = "a fact about the servers, told in the adapter's README"
SERVER = "binds the OpenHands server"

OPENHANDS_V1 = {
    "OV1": rule(VERSIONS, "R", "codec", "Pieces of both sockets are read, whichever the server's version sends."),
    "OV2": rule(VERSIONS, "R", "connector", "`/server_info` tells the version, and the version tells the socket."),
    "OV3": rule(VERSIONS, "R", "codec", "An unknown kind is opaque, an unknown field a loss."),
    "OV4": rule(AUTH, "R", "connector", "`/server_info` is open without a key, so a wrong key still identifies V1."),
    "OV5": rule(AUTH, "R", "connector", "The first frame of a socket has the key, which is masked if it is ever read."),
    "OV6": rule(AUTH, "R", "connector", "An error's body, which may quote the request, is never logged."),
    "OV7": rule(AUTH, "R", "connector", "403, 4001 and 4004 are final; other closes are retried."),
    "OV8": rule(SOCKETS, "R", "codec", "The snapshot of the state has a fresh id and is never recorded."),
    "OV9": rule(SOCKETS, "R", "connector", "An event that history and live both bring is passed on once."),
    "OV10": rule(SOCKETS, "R", "codec", "Native times are kept and never compared."),
    "OV11": rule(SOCKETS, "R", "connector", "An envelope adds only the sequence; the history ends at `through_seq`."),
    "OV12": rule(SOCKETS, "R", "codec", "A piece names the event to come; a higher attempt is another message."),
    "OV13": rule(SOCKETS, "R", "connector", "A silent socket is alive while its pongs come."),
    "OV14": rule(SOCKETS, "R", "connector", "Liveness is asked by pings."),
    "OV15": rule(SOCKETS, "R", "codec", "The answer to a bad frame is a fault, cut because it quotes the frame."),
    "OV16": rule(REST, "R", "connector", "A conversation is created with workspace and agent."),
    "OV17": rule(REST, "G", "connector", "A created conversation has an id of ours and no first message."),
    "OV18": rule(REST, "R", "codec", "The prompt of the first message is kept as size, hash and names of its tools."),
    "OV19": rule(REST, "R", "codec", "The names of the agent's own tools give the kinds of action and observation."),
    "OV20": rule(REST, "R", "codec", "A message of over 16 MiB is refused before it is sent."),
    "OV21": rule(REST, "R", "connector", "A page begins at the cursor; any other is a fresh listing."),
    "OV22": rule(REST, "R", "codec", "What is stored is equal on both sockets; the rest is live and has no id."),
    "OV23": rule(REST, "R", "codec", "An event has one identity on sockets and pages."),
    "OV24": rule(REST, "R", "connector", "A POST may take as long as a tool."),
    "OV25": rule(REST, "R", "connector", "429 for a message repeats only the run."),
    "OV26": not_ours(
        REST, "R", "The server's webhooks repeat its events.", "the operator of the server configures them"
    ),
    "OV27": rule(EVENTS, "R", "codec", "Each execution status is a state; stuck is an error with that reason."),
    "OV28": rule(SAYING, "R", "codec", "A message is a list of texts and images; what does not wake does not run."),
    "OV29": rule(SAYING, "R", "codec", "The echo of a message has its text; nothing else connects them."),
    "OV30": rule(SAYING, "R", "codec", "A hint is a message that joins the running turn."),
    "OV31": rule(SAYING, "R", "codec", "An interrupt is a POST; a call that it ended may have acted all the same."),
    "OV32": rule(SAYING, "R", "codec", "A pause is a state with a reason, and a POST without an equivalent event."),
    "OV33": rule(
        SAYING, "R", "codec", "One answer, without an id, decides all held actions; a risk is shown to people."
    ),
    "OV34": rule(SAYING, "R", "codec", "The snapshot that ends a run is recognized, and shown live."),
    "OV35": rule(SAYING, "R", "core", "No work is sent while actions are held."),
    "OV36": rule(SAYING, "R", "codec", "A rejected action is canceled with the reason."),
    "OV37": rule(SAYING, "R", "connector", "An answer is sent only while the same state waits."),
    "OV38": rule(CALLS, "R", "codec", "An action is a call under its own id, also if the server could not use it."),
    "OV39": rule(CALLS, "R", "codec", "`is_error` decides the outcome; an exit code is part of the result."),
    "OV40": rule(CALLS, "R", "codec", "A call that a restart ended is unknown."),
    "OV41": rule(CALLS, "R", "codec", "An agent error is tied to its call by `tool_call_id`."),
    "OV42": rule(CALLS, "R", "codec", "A conversation error is a fault with its code; stuck has only its status."),
    "OV43": rule(CALLS, "R", "codec", "A sub-agent is a call of the runtime and its result."),
    "OV44": rule(
        CALLS, "R", "codec", "A client tool is a call of the runtime; a loss says that no result is accepted."
    ),
    "OV45": rule(TOOLS, "R", "codec", "Headers of `mcp_config` are masked wherever they are read."),
    "OV46": rule(TOOLS, "R", "codec", "The names of the tools that an agent got are kept."),
    "OV47": rule(TOOLS, "R", "codec", "An MCP tool is known with and without the name of its server."),
    "OV48": rule(TOOLS, "R", "core", "Calls and actions are linked by tool and arguments, whichever comes first."),
    "OV49": rule(TOOLS, "R", "codec", "A call is answered within 280 s; a time-out of the client is a failure."),
    "OV49a": rule(TOOLS, "R", "runtime", "Our MCP server answers without sessions, as plain JSON."),
    "OV50": rule(TOOLS, "R", "codec", "The texts of an MCP result are its content; a refused call is a failure."),
    "OV51": rule(TOOLS, "R", "codec", "An action that calls our tool is a call of the runtime, which the core links."),
    "OV52": rule(ACP, "R", "connector", "An ACP agent is created by its server and its secrets."),
    "OV53": rule(ACP, "R", "codec", "The prompt of an ACP agent names no tools."),
    "OV54": rule(ACP, "R", "codec", "The resume secret of an ACP agent is masked; a failed start is a fault."),
    "OV55": rule(ACP, "R", "codec", "An ACP call is requested once for its arguments and finished once."),
    "OV56": rule(ACP, "R", "codec", "An end without output proves nothing."),
    "OV57": rule(ACP, "R", "codec", "The finish of an ACP agent is its message; its pieces have the same id."),
    "OV58": not_ours(ACP, "R", "An ACP agent's requests for permission are answered with yes.", SERVER),
    "OV59": rule(ACP, "R", "codec", "A hint does not run, unless the options let it replace the turn."),
    "OV60": rule(ACP, "R", "connector", "An unanswered message is passed over before the next one."),
    "OV61": not_ours(ACP, "R", "A pause does not stop an ACP agent; an interrupt does.", FACT),
    "OV62": rule(ACP, "R", "codec", "An ACP error is a message and a fault with its code."),
    "OV63": rule(ACP, "R", "codec", "Metrics are not recorded."),
    "OV64": not_ours(NEWEST, "R", "There are two V1 servers, the app server and the agent-server.", FACT),
    "OV65": rule(NEWEST, "R", "connector", "After an unexplained 1000 the link reads pages."),
    "OV66": not_ours(NEWEST, "R", "Some servers deduplicate creations under a lock.", FACT),
    "OV67": not_ours(
        NEWEST,
        "R",
        "Whether the server reaches our MCP address can be asked.",
        "the first message shows it, as OV46 says",
    ),
    "OV68": rule(NEWEST, "R", "codec", "A message that a hook has blocked is a fault."),
    "OV69": not_ours(NEWEST, "R", "New tools after a reload need a restart of the agent.", FACT),
    "OV70": not_ours(NEWEST, "R", "`/goal` and `/children` start turns by themselves.", SERVER),
    "OV71": not_ours(NEWEST, "R", "With a cut SSE answer the agent hangs 302 s.", SERVER),
    "OV72": rule(APP, "R", "connector", "An app server of V1 is known by its OpenAPI document and its count."),
    "OV73": rule(APP, "R", "connector", "The app server takes its key in the same header."),
    "OV74": rule(APP, "R", "connector", "One poller asks for all conversations of an app."),
    "OV75": rule(APP, "R", "connector", "A conversation with the user's model is created by the app."),
    "OV76": rule(APP, "R", "connector", "A start task is polled until READY or ERROR, with a limit."),
    "OV77": rule(APP, "R", "connector", "The sandbox is created first and always named."),
    "OV78": not_ours(APP, "R", "Pending messages are deleted even when their sending failed.", "the adapter uses none"),
    "OV79": rule(APP, "R", "connector", "Address and key of an agent-server come from the sandbox."),
    "OV80": rule(APP, "R", "connector", "`host` replaces localhost in the address of a sandbox."),
    "OV81": rule(APP, "R", "connector", "A sleeping sandbox is tried at its last address."),
    "OV82": not_ours(APP, "R", "The bundled agent-server has only the events socket.", FACT),
    "OV83": rule(APP, "R", "connector", "The settings of the app's user are never written."),
    "OV84": not_ours(APP, "R", "With a web URL the tools have the prefix of their server.", FACT),
    "OV85": rule(APP, "R", "connector", "With an LLM key of ours a sandbox gets our tools."),
    "OV86": not_ours(APP, "R", "The user's settings give the confirmation policy.", FACT),
    "OV87": rule(APP, "R", "connector", "Messages go to the agent-server, not to the app."),
    "OV88": rule(APP, "R", "connector", "The app's copy of the events is never a cursor."),
    "OV89": not_ours(APP, "R", "The app calls no URL when something happens.", SERVER),
    "OV90": rule(APP, "R", "connector", "Address and key are read again after a resume."),
    "OV91": rule(APP, "R", "connector", "A failed creation keeps its sandbox: the sixth one pauses the oldest."),
    "OV92": not_ours(
        APP, "R", "Deleting a conversation of the app may leave its agent-server's.", "the adapter deletes none"
    ),
    "OV93": rule(APP, "G", "connector", "An attached or created conversation is reached by its sandbox."),
}
