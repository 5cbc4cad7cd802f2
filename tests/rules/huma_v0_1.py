"""The rules of HUMA 0.1, `L1` to `L74`."""

from tests.rules.rule import AUTHOR, STATE, not_ours, rule

EVENTS = "HUMA 0.1, State Changes & Events"
TOOLS = "HUMA 0.1, Design Tools"

HUMA_0_1 = {
    "L1": rule(
        f"{EVENTS}: Overview", "R", "runtime",
        "Neither side polls: posted events leave for the agent at once, and its tool calls come in unasked.",
    ),
    "L2": rule(f"{EVENTS}: Event Schema", "R", "codec", "What we say travels on `message` as one JSON object."),
    "L3": rule(f"{EVENTS}: Responding", "R", "codec", "What the agent says comes on `event`, told apart by `type`."),
    "L4": rule(
        f"{EVENTS}: Event Schema", "R", "codec",
        "Context events and tool results are wrapped as `type` huma-0.1-event with a `content`.",
    ),
    "L5": rule(
        f"{EVENTS}: Event Schema; {TOOLS}: Sending Tool Results", "I", "codec",
        "Inside the wrapper, `content.type` tool-result means a result and no `content.type` a context event.",
    ),
    "L6": rule(f"{EVENTS}: Event Schema", "R", "codec", "A context event carries its name as a string."),
    "L7": not_ours(f"{EVENTS}: Event Naming", "G", "Names are descriptive and in kebab-case.", AUTHOR),
    "L8": not_ours(f"{EVENTS}: Event Naming", "G", "Names are kept as constants.", AUTHOR),
    "L9": rule(
        f"{EVENTS}: Event Schema", "R", "core",
        "A context event carries the whole current state as an object, never only what changed.",
    ),
    "L10": rule(f"{EVENTS}: Event Schema", "R", "codec", "A context event tells in plain words what happened."),
    "L11": not_ours(f"{EVENTS}: Descriptions", "G", "A description names actor, action, target and outcome.", AUTHOR),
    "L12": rule(
        f"{EVENTS}: Event Schema", "I", "codec",
        "Name, context and description are all there in every context event, or the frame is malformed.",
    ),
    "L13": rule(
        f"{EVENTS}: Event Schema", "I", "codec",
        "No triggering flag is written; that an event should not wake the agent is a recorded loss.",
    ),
    "L14": not_ours(f"{EVENTS}: Go Fish", "I", "The state is the one after the described change.", AUTHOR),
    "L15": rule(f"{EVENTS}: Message Events", "R", "codec", "A chat message travels as `type` new-message."),
    "L16": rule(f"{EVENTS}: Message Events", "R", "codec", "A message has an id of its own, a string."),
    "L17": rule(f"{EVENTS}: Message Events", "R", "codec", "A message's text is the string `content.content`."),
    "L18": rule(f"{EVENTS}: Message Events", "R", "codec", "A message may carry a list of images, or none."),
    "L19": rule(f"{EVENTS}: Message Events", "R", "codec", "Each image is a base64 data URL."),
    "L20": rule(f"{EVENTS}: Message Events", "R", "codec", "An image may have a text for those who cannot see it."),
    "L21": rule(f"{EVENTS}: Message Events", "R", "codec", "A message names its sender's id, a string."),
    "L22": rule(f"{EVENTS}: Message Events", "R", "codec", "A message names its sender's nickname, a string."),
    "L23": rule(f"{EVENTS}: Message Events", "I", "codec", "A message says when it was written, in ISO 8601 UTC."),
    "L24": rule(f"{EVENTS}: Message Events", "I", "codec", "The content of a message says `type` message."),
    "L25": rule(
        f"{EVENTS}: Message Events", "I", "codec",
        "The message envelope has no name, context or description, so it cannot refresh the agent's state.",
    ),
    "L26": not_ours(
        f"{EVENTS}: Image Support", "R", "Image formats are described elsewhere.", "points to another document"
    ),
    "L27": rule(
        f"{EVENTS}: Chat Message", "I", "codec",
        "Chat told as a context event with the full state is an ordinary context event, both ways.",
    ),
    "L28": rule(
        f"{TOOLS}: Example", "R", "connector",
        "The declared tools are sent once, in `metadata.tools`, when the agent is created.",
    ),
    "L29": rule(f"{TOOLS}: Definition", "R", "connector", "Each tool is declared under its own unique name."),
    "L30": rule(f"{TOOLS}: Definition", "R", "connector", "Each declared tool has its description."),
    "L31": rule(f"{TOOLS}: Definition", "R", "connector", "A tool's parameters are a list, which may be empty."),
    "L32": rule(f"{TOOLS}: Definition", "R", "connector", "Each parameter has its name."),
    "L33": rule(
        f"{TOOLS}: Definition", "R", "connector",
        "A parameter's type is string, number, boolean, object or array; others are narrowed to one of these.",
    ),
    "L34": rule(f"{TOOLS}: Definition", "R", "connector", "Each parameter has a description, a string."),
    "L35": rule(f"{TOOLS}: Definition", "R", "connector", "A parameter is marked required only where it is."),
    "L36": rule(
        f"{TOOLS}: Definition", "I", "connector",
        "What the form cannot say of a schema (choices, ranges, nested shapes) is told in prose, as a recorded loss.",
    ),
    "L37": rule(
        f"{TOOLS}: Example", "R", "connector", "Creating an agent also sends className, personality and instructions."
    ),
    "L38": not_ours(f"{TOOLS}: Best Practices", "G", "Tools have verbs as names and agree with instructions.", AUTHOR),
    "L39": rule(
        f"{TOOLS}: Example", "I", "codec", "In 0.1 a declared send_message is a host call like every other tool."
    ),
    "L40": rule(
        f"{TOOLS}: Receiving", "R", "codec", "A tool-call gives its id, the tool's name and the arguments."
    ),
    "L41": rule(f"{TOOLS}: Receiving", "R", "codec", "The id of a call comes back unchanged in its result."),
    "L42": rule(f"{TOOLS}: Receiving", "I", "codec", "An id may be any text; it is never read as a UUID."),
    "L43": rule(f"{TOOLS}: Executing", "R", "runtime", "Every call is carried out and answered with a result."),
    "L44": rule(
        f"{TOOLS}: Executing; Pitfalls", "R", "core",
        "A call that nobody serves ends in a failure whose text names the tool.",
    ),
    "L45": rule(
        f"{TOOLS}: Validate All Inputs", "R", "core", "A call that lacks a required argument is not executed."
    ),
    "L46": rule(
        f"{TOOLS}: Validate All Inputs", "R", "core",
        "A call with a value outside the declared range or choices is not executed.",
    ),
    "L47": not_ours(f"{TOOLS}: Validate All Inputs", "R", "The action is legal in the current state.", STATE),
    "L48": not_ours(f"{TOOLS}: Validate All Inputs", "R", "The actor may do it.", STATE),
    "L49": rule(
        f"{TOOLS}: Useful Error Messages", "R", "core",
        "Invalid arguments are answered with a failure that says where, what was given and what is allowed.",
    ),
    "L50": rule(
        f"{EVENTS}: Responding", "R", "executor", "A backend that breaks down is answered to the agent as a failure."
    ),
    "L51": rule(f"{TOOLS}: Sending Tool Results", "I", "core", "A call gets exactly one final result."),
    "L52": rule(
        f"{EVENTS}: Tool Result Schema", "R", "codec", "A result is a huma-0.1-event with `content.type` tool-result."
    ),
    "L53": rule(f"{EVENTS}: Tool Result Schema", "R", "codec", "A result names its call, or it is malformed."),
    "L54": rule(f"{EVENTS}: Tool Result Schema", "R", "codec", "A result's status is completed or canceled."),
    "L55": rule(f"{EVENTS}: Tool Result Schema", "R", "codec", "A result's `success` is a real boolean."),
    "L56": rule(f"{EVENTS}: Tool Result Schema", "R", "codec", "A success may carry any JSON as its result."),
    "L57": rule(f"{EVENTS}: Tool Result Schema", "R", "codec", "A failure may carry an error text."),
    "L58": rule(f"{EVENTS}: Tool Result Schema", "R", "codec", "Success is written completed and true."),
    "L59": rule(f"{EVENTS}: Tool Result Schema", "R", "codec", "Failure is written completed and false, with a text."),
    "L60": rule(f"{EVENTS}: Tool Result Schema", "R", "codec", "Canceled is written canceled and false, with a text."),
    "L61": rule(
        f"{EVENTS}: Tool Result Schema", "I", "core", "A call the agent has withdrawn is answered as canceled."
    ),
    "L62": rule(f"{EVENTS}: Tool Result Schema", "I", "codec", "A 0.1 result has no tool name."),
    "L63": rule(f"{EVENTS}: Tool Result Schema", "I", "codec", "A canceled result with success true is malformed."),
    "L64": rule(
        f"{EVENTS}: Responding", "R", "core", "An outcome's updates go to the agent as well as the result itself."
    ),
    "L65": rule(f"{TOOLS}: Event Sequencing", "R", "core", "Updates leave before the result they belong to."),
    "L66": rule(
        f"{TOOLS}: Event Sequencing", "R", "runtime", "Frames of one session reach the agent in the order decided."
    ),
    "L67": not_ours(f"{TOOLS}: Event Sequencing", "R", "The context is built anew after execution.", AUTHOR),
    "L68": not_ours(
        f"{EVENTS}: Complete Flow", "I", "One example shows the result before the event.", "contradicted by L65; see A5"
    ),
    "L69": not_ours(f"{EVENTS}: Complete Flow", "I", "Each turn is announced by an event of its own.", AUTHOR),
    "L70": rule(
        f"{TOOLS}: Tool Cancellation", "R", "codec", "A cancel-tool-call names a call, perhaps a reason, and no tool."
    ),
    "L71": rule(
        f"{TOOLS}: Tool Cancellation", "R", "core",
        "A withdrawn call is stopped and answered canceled, with the agent's reason or a text of ours.",
    ),
    "L72": rule(
        f"{TOOLS}: Tool Cancellation", "R", "core",
        "A withdrawn call that has not left yet, or cannot be stopped, is still answered canceled.",
    ),
    "L73": rule(f"{TOOLS}: Tool Cancellation", "R", "core", "A cancel for a call that has ended changes nothing."),
    "L74": not_ours(
        "HUMA 0.1, both documents", "I", "0.1 defines no error event, codes, sizes or time-outs.",
        "says what is absent; asks for nothing",
    ),
}  # fmt: skip
